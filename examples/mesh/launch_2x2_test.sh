#!/usr/bin/env bash
# The 2×2 mesh: 2 data, 2 tensor. launch_2x2_test.sh [jax|torch]
exec "$(dirname "$0")/launch.sh" 2 2 "$@"
