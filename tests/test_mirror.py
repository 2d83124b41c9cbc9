"""A newcomer finds the test of every module: at the module's own path, or in the table below."""

from pathlib import Path

import sizes

TESTS = Path(__file__).parent
ELSEWHERE = {
    "__init__": "claims/test_imports.py: import paceline",
    "__main__": 'support/helpers.py: "-m", "paceline"',
    "api/notebook_code": "claims/test_python_api.py: notebook_code",
    "api/search": "extras/search/test_run_search.py: paceline.search",
    "api/training": "claims/test_python_api.py: paceline.train",
    "chief": "simulation/machine.py: chief",
    "cli/data": "cli/test_data_commands.py: info",
    "cli/help": "cli/test_commands.py: --help",
    "cli/proof": "extras/test_proof.py: verify",
    "cli/results": "results/test_evaluate.py: eval",
    "cli/runs": "cli/test_list_runs.py: runs",
    "cli/search": "extras/search/test_run_search.py: search",
    "cli/spark_script": "places/test_spark.py: spark-script",
    "cli/tables": "cli/test_list_runs.py: cuts_no_names",
    "data/build_source": "cli/test_data_commands.py: there is no folder",
    "data/statistics": "maths/test_losses.py: balanced_weights",
    "engines/base": "engines/test_collective.py: ENGINES",
    "engines/memory": "engines/test_collective.py: held",
    "engines/pairs": "claims/test_any_workers.py: ExactSum",
    "engines_more/parameter_server/asynchronous": "engines_more/test_parameter_servers.py: async",
    "engines_more/parameter_server/ps_base": "engines_more/test_parameter_servers.py: --ps",
    "engines_more/parameter_server/ps_engine": "engines_more/test_parameter_servers.py: --ps",
    "engines_more/parameter_server/serve": "engines_more/test_parameter_servers.py: --ps",
    "engines_more/parameter_server/synchronous": "engines_more/test_parameter_servers.py: --ps",
    "engines_more/ray_actors/actor": "places/test_ray.py: actor",
    "engines_more/ray_actors/crew": "places/test_ray.py: Crew",
    "engines_more/ray_actors/ray_engine": "places/test_ray.py: RayEngine",
    "experiment/data": "data/test_images.py: Augmentation(",
    "experiment/model": "models/test_resnet.py: Model(",
    "experiment/names": "cli/test_parse.py: did you mean",
    "experiment/optimizer": "experiment/test_experiment.py: Optimizer",
    "experiment/plan": "experiment/test_schedule_plan.py: build_plan",
    "experiment/recipes/cifar10": "experiment/test_recipes.py: cifar10",
    "experiment/recipes/photos": "experiment/test_recipes.py: finetune",
    "experiment/recipes/table": "experiment/test_recipes.py: RECIPES",
    "experiment/schedule": "experiment/test_schedule_plan.py: learning_rate",
    "extras/proof/chain": "extras/test_proof.py: next_link",
    "extras/proof/compare": "extras/test_proof.py: diff",
    "extras/proof/differences": "extras/test_proof.py: find_difference",
    "extras/proof/follow": "extras/test_proof.py: Auditor",
    "extras/proof/replay": "extras/test_proof.py: other_bits",
    "extras/proof/verify": "extras/test_proof.py: verify",
    "extras/report/run_data": "extras/report/test_report_page.py: read_run",
    "extras/report/sections": "extras/report/test_report_page.py: report",
    "extras/search/options": "extras/search/test_run_search.py: Options",
    "extras/tracking/mlflow_client": "extras/tracking/test_trackers.py: mlflow",
    "extras/tracking/wandb_client": "extras/tracking/test_trackers.py: wandb",
    "formats/image_list": "formats/test_image_folder.py: pictures",
    "formats/pool": "formats/test_convert.py: processes",
    "formats/reading": "formats/test_image_folder.py: explain",
    "formats/source_folder": "cli/test_data_commands.py: there is no folder",
    "job": "test_launch.py: Job",
    "kernels/__main__": "kernels/test_library.py: paceline.kernels",
    "kernels/compiler": "kernels/test_library.py: build_library",
    "kernels/ops_more": "kernels/test_ops.py: norm_swish",
    "maths/signatures": "extras/test_proof.py: signatures",
    "maths/state": "run_folder/test_checkpoints.py: State",
    "maths/weight_rounds": "engines/test_collective.py: weights",
    "models/fast_functions": "models/test_accelerate.py: Fast",
    "models/fast_layers": "models/test_accelerate.py: FastConv2D",
    "models/fast_swish": "models/test_accelerate.py: SwishNorm",
    "models/initial_weights": "models/test_layers.py: InitialWeights",
    "places/local": "claims/test_several_workers.py: --workers",
    "places/spark/place": "places/test_spark.py: place",
    "places/spark/session": "places/test_spark.py: session",
    "places/spark/stage": "places/test_spark.py: stage",
    "places/spark/task": "places/test_spark.py: find_problem",
    "requests": "results/test_evaluate.py: EvaluateRequest",
    "results/any_size": "results/test_export.py: images_of_any_size",
    "results/dry_run": "cli/test_train.py: --dry-run",
    "results/export_formats": "results/test_export.py: onnx",
    "results/image_bytes": "faults/test_hostile_input.py: image_bytes",
    "results/onnx_predict": "results/test_export.py: predict_onnx",
    "results/shown": "api/test_functions.py: _repr_html_",
    "results/tflite": "results/test_export.py: tflite",
    "results/trained_model": "results/test_export.py: load",
    "run_folder/checkpoint_file": "run_folder/test_checkpoints.py: RunIdentity",
    "run_folder/given_weights": "models/test_fine_tuning.py: read_weights",
    "run_folder/listing": "cli/test_list_runs.py: list_runs",
    "run_folder/survivor": "supervise/test_recovery.py: answer",
    "run_folder/user_actions": "run_folder/test_actions.py: UserAction",
    "spark": "support/spark_runs.py: paceline.spark",
    "storage/array_files": "faults/test_hostile_input.py: read_npy",
    "storage/lease": "run_folder/test_remote_run.py: read_lease",
    "supervise/diagnosis": "supervise/test_group.py: EXPLAIN_S",
    "supervise/interface": "supervise/test_recovery.py: Inbox",
    "versions": "run_folder/test_comparison.py: library_versions",
    "worker": "simulation/machine.py: worker",
}
"""Module -> the file that tests it, and a word by which you find the place there."""


def test_every_module_has_a_test_that_a_newcomer_finds() -> None:
    modules = {path.relative_to(sizes.PACKAGE).with_suffix("") for path in sizes.whole()}
    found = {
        module.as_posix()
        for module in modules
        if (TESTS / module.parent / f"test_{module.name}.py").exists()
        or not (sizes.PACKAGE / module).with_suffix(".py").read_text()
    }
    names = {module.as_posix() for module in modules}
    assert {"without a test": names - found - ELSEWHERE.keys()} == {"without a test": set()}
    assert {"no longer needed": ELSEWHERE.keys() & found} == {"no longer needed": set()}
    assert {"no such module": ELSEWHERE.keys() - names} == {"no such module": set()}
    for where in ELSEWHERE.values():
        file, _, word = where.partition(": ")
        assert word in (TESTS / file).read_text(), where
