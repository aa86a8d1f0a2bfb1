#!/usr/bin/env bash
# The 1×2 mesh: 1 data, 2 tensor. launch_1x2_test.sh [jax|torch]
exec "$(dirname "$0")/launch.sh" 1 2 "$@"
