#!/bin/sh
# Writes experiments/validation/predictions/<id>.csv for every scenario with held values. Usage: predict.sh path/to/kvsim
set -eu
here=$(dirname "$0")
for id in S01 S02 S03 S04 S05 S06 S07 S08 S09 S11 S12 S13 S14 S15 S16 S17 S18; do
  "$1" validate --predict "$id" > "$here/predictions/.$id.part"
  mv "$here/predictions/.$id.part" "$here/predictions/$id.csv"
done
