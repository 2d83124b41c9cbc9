#!/usr/bin/env bash
# Packages of the system that some tests need: Java 17 for Spark, ip and tc for hosts as network namespaces, Chromium for the report.
# Installed where this user may; else the tests that need them are skipped and say so.
set -uo pipefail

missing=()
java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || missing+=(openjdk-17-jre-headless)
command -v ip tc > /dev/null || missing+=(iproute2)
command -v chromium google-chrome > /dev/null || missing+=(chromium)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    apt-get update -qq > /dev/null 2>&1
    for package in "${missing[@]}"; do
        apt-get install -qq -y --no-install-recommends "$package" > /dev/null 2>&1 || failed+=("$package")
    done
else
    failed=("${missing[@]}")
fi
[ -z "${failed[*]:-}" ] || echo "Without these packages some tests are skipped: ${failed[*]} (Debian: apt-get install ${failed[*]})"
