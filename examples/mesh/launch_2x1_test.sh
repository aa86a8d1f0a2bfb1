#!/usr/bin/env bash
# The 2×1 mesh: 2 data, 1 tensor. launch_2x1_test.sh [jax|torch]
exec "$(dirname "$0")/launch.sh" 2 1 "$@"
