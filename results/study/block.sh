#!/usr/bin/env bash
# Trains and evaluates arms of one seed, U8 first, since the others fork from it.
#   block.sh RUNS SEED ARM...     arms: u8 u7.5 u7 u6 u9 part; an arm written ARM+aa is also evaluated with AutoAttack
# Run it again to finish what was interrupted: `train` and `evaluate` resume.
set -euo pipefail
runs=$1 seed=$2
shift 2
for arm in "$@"; do
  attacks=natural,apgd
  case $arm in *+aa) arm=${arm%+aa} attacks=$attacks,autoattack ;; esac
  fork=(--init-from "$runs/$seed-u8@8")
  case $arm in
    u8) train=(cifar10-at-fast --keep 8) fork=() ;;
    u*) train=(cifar10-at-fast --eps "${arm#u}/255") ;;
    part) train=(cifar10-part-fast) ;;
    *) echo "unknown arm $arm" >&2; exit 2 ;;
  esac
  python3 -m pixelpart train "${train[@]}" "${fork[@]}" --seed "$seed" --out "$runs/$seed-$arm"
  python3 -m pixelpart evaluate "$runs/$seed-$arm" --attacks "$attacks" --checkpoint last
done
