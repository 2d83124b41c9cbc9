#!/usr/bin/env bash
# Installs system packages that are missing: `packages.sh g++` what the kernels need to be built,
# `packages.sh g++-aarch64-linux-gnu` what they need to be built for 64-bit ARM, `packages.sh` what some tests need:
# Java 17 for Spark, ip and tc for network namespaces, Slurm, Chromium for the report.
# If this user may not install them, TensorFlow's kernels are used, and the tests that need the others are skipped.
set -uo pipefail

missing=()
if [ "${1:-}" = g++ ]; then
    command -v "${CXX:-g++}" clang++ > /dev/null || missing+=(g++)
elif [ "${1:-}" = g++-aarch64-linux-gnu ]; then
    command -v aarch64-linux-gnu-g++ > /dev/null || missing+=("$1")
else
    java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || missing+=(openjdk-17-jre-headless)
    command -v ip tc > /dev/null || missing+=(iproute2)
    command -v slurmctld slurmd > /dev/null || missing+=(slurm-wlm)
    command -v chromium google-chrome > /dev/null || missing+=(chromium)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    exec 9> "${TMPDIR:-/tmp}/paceline-packages.lock"
    flock 9  # make runs this twice at a time, apt-get would refuse
    install=(apt-get install -qq -y --no-install-recommends)
    echo "Installing system packages: ${missing[*]} ..."
    apt-get update -qq > /dev/null 2>&1
    if ! "${install[@]}" "${missing[@]}" > /dev/null 2>&1; then  # one by one: some are better than none
        for package in "${missing[@]}"; do
            "${install[@]}" "$package" > /dev/null 2>&1 || failed+=("$package")
        done
    fi
else
    failed=("${missing[@]}")
fi
[ -z "${failed[*]:-}" ] || echo "These packages are missing: ${failed[*]} (Debian: apt-get install ${failed[*]})"
exit 0
