#!/usr/bin/env bash
# aarch64.sh FOLDER WHEEL: makes FOLDER/python, a Python for 64-bit ARM under QEMU that has TensorFlow and this wheel
# (`make wheel ARCH=aarch64`). For `compare.py --python aarch64=FOLDER/python`. It needs root on Debian 12, and qemu-user-static.
set -euo pipefail
folder=$(realpath -m "$1") wheel=$(realpath "$2") project=$(realpath "$(dirname "$0")/../..")
mkdir -p "$folder/debs" "$folder/root"

dpkg --add-architecture arm64
apt-get update -qq
(cd "$folder/debs" && apt-get download -qq {python3.11-minimal,libpython3.11-minimal,libpython3.11-stdlib,libc6,libgcc-s1,libstdc++6}:arm64 \
    {libbz2-1.0,libcrypt1,libdb5.3,libexpat1,libffi8,liblzma5,libncursesw6,libnsl2,libreadline8,libsqlite3-0,libssl3,libtinfo6,libtirpc3,libuuid1,zlib1g}:arm64)
for package in "$folder"/debs/*.deb; do dpkg-deb --extract "$package" "$folder/root"; done

uv=$(command -v uv || echo "$project/.venv/bin/uv")
"$uv" pip install --quiet --target "$folder/site" --python-version 3.11 --python-platform aarch64-unknown-linux-gnu \
    --only-binary :all: --constraint "$project/constraints.txt" "$wheel[cpu]"

# Workers are started through the script, too.
cat > "$folder/python" <<END
#!/bin/sh
export QEMU_LD_PREFIX=$folder/root PYTHONPATH=$folder/site
exec qemu-aarch64-static -0 $folder/python $folder/root/usr/bin/python3.11 "\$@"
END
chmod +x "$folder/python"
echo "$folder/python"
