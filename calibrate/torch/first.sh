#!/usr/bin/env bash
# What to measure first where a GPU is to be had for a quarter of an hour: the scripts in the order of their value, each with a share of
# the time, so that a cut leaves the best part behind. A script that fails or hangs costs its own share alone.
#
#   calibrate/torch/first.sh [SECONDS]        default 780; files go to $OUT, else ./measured
#
# PYTHON names the interpreter, FLAGS adds options to every script (--tiny --profile cpu on a device that computes nothing), PLAN
# names the plan for the calibrator.
set -u
total=${1:-780}
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-./measured}
python=${PYTHON:-python3}
mkdir -p "$out"
begun=$SECONDS
export PYTHONUNBUFFERED=1

left() { echo $((total - (SECONDS - begun))); }

# take NAME SHARE [OPTIONS]: SHARE is of a thousand of the whole time; never more than what is left. A script ends with 6 when the
# device gave up under it, and is killed by a signal when a library crashes; it then goes on after the point that did it.
take() {
    local name=$1 share=$2 until again=0 seconds code
    shift 2
    until=$((SECONDS + total * share / 1000))
    while :; do
        seconds=$((until - SECONDS))
        [ "$seconds" -gt "$(left)" ] && seconds=$(left)
        [ "$seconds" -lt 5 ] && return
        echo "== $name, $seconds s of $(left) s"
        # shellcheck disable=SC2086
        timeout -k 5 $((seconds + 10)) "$python" "$here/$name.py" --seconds "$seconds" --out "$out/$name.jsonl" ${FLAGS:-} "$@" >>"$out/$name.log" 2>&1
        code=$?
        tail -n 1 "$out/$name.log"
        again=$((again + 1))
        [ $code -eq 6 ] || { [ $code -ge 132 ] && [ $code -ne 143 ]; } || break
        [ $again -lt 4 ] || break
    done
    [ $code -eq 0 ] || echo "   $name ended with $code; see $out/$name.log"
}

take experts 230
take permutation 90
take steps 250
take fp8 70
take host 50
take power 90
take kernels 90

# Steps of models without experts, on a device that has none of them yet: an H100 beside the H200.
device=$("$python" -c 'import torch; print(torch.cuda.get_device_name())' 2>/dev/null | tail -n 1)
case "$device" in
    *H200*) ;;
    *H100*) if [ -f "$here/../receipts/make.py" ] && [ "$(left)" -gt 60 ] && [ -z "${FLAGS:-}" ]; then
        timeout -k 5 $(($(left) - 5)) "$python" "$here/../receipts/make.py" "$out/receipts.jsonl" --minutes "$(($(left) / 60))" >"$out/receipts.log" 2>&1
        tail -n 1 "$out/receipts.log"
    fi ;;
esac

# The calibrator's own plan.
if command -v windtunnel-calibrate >/dev/null && [ "$(left)" -gt 40 ]; then
    timeout -k 5 $(($(left) - 5)) windtunnel-calibrate cuda --minutes "$(($(left) / 60))" ${PLAN:+--plan "$PLAN"} --out "$out/calibrate.jsonl" >"$out/calibrate.log" 2>&1
    tail -n 1 "$out/calibrate.log"
fi

# Time that some script did not use goes to what most points are left of.
[ "$(left)" -gt 30 ] && take experts 1000
[ "$(left)" -gt 30 ] && take kernels 1000
echo "== $((SECONDS - begun)) s"
exit 0
