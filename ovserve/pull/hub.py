"""Models on the Hugging Face hub, by huggingface_hub, which is the extra `hub`.

The revision is pinned: a branch or tag is resolved once, and the same command later stays at that commit.
Files are fetched one by one into a partial file named after its content, because the library's own download
starts a file again in every process; here the next process resumes it. Each file is checked by the hash that
the hub reports: sha256 of a large file, git's of a small one. The library reads HF_TOKEN, HF_ENDPOINT and the
proxy variables.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from ovserve.engine.model.files import LANGUAGE_MODELS
from ovserve.engine.model.gguf import PART_NAME
from ovserve.errors import LoadError, NotFound, OvserveError, PermissionDenied, Unavailable, extra
from ovserve.kinds.images.spec import INDEX, MODEL
from ovserve.kinds.speech.spec import ENCODER as SPEECH_ENCODER
from ovserve.pull.packaged import NO_SAMPLING
from ovserve.pull.progress import progress, require
from ovserve.pull.record import digest

KEPT = (
    "openvino_*",
    "*.json",
    "*.jinja",
    "*.txt",
    "additional_chat_templates/*",
    "voices/*",
    "data/*",
    "LICENSE*",
)


class RemoteFile(msgspec.Struct, frozen=True):
    """A file on the hub. `sha` is git's hash of a blob, or with `large` a sha256."""

    name: str
    size: int  # bytes
    sha: str
    large: bool

    def is_at(self, path: Path) -> bool:
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return self.sha == (digest(path) if self.large else _git_digest(path))


def choose(
    repo: str, files: Sequence[RemoteFile], gguf: str = "", *, encoder: bool = False
) -> list[RemoteFile]:
    """Choose the files of one form: OpenVINO IR, one .gguf model, or the safetensors of an `encoder`.

    Raises NotFound or LoadError.
    """
    for file in files:
        if PurePosixPath(file.name).is_absolute() or ".." in PurePosixPath(file.name).parts:
            raise LoadError(f"{repo} names a file outside of its folder: {file.name!r}")
    if any(f.name == INDEX for f in files):
        return _pipeline(repo, files)
    quantised = _gguf_models(files)
    names = ", ".join(quantised) or "none"
    if gguf:
        if gguf in quantised:
            return quantised[gguf]
        raise NotFound(f"{repo} has no file {gguf}; its .gguf files: {names}")
    if any(f.name in (*LANGUAGE_MODELS, SPEECH_ENCODER) for f in files):
        return [f for f in files if any(fnmatch(f.name, pattern) for pattern in KEPT)]
    if encoder:
        return _encoder(repo, files)
    if len(quantised) == 1:
        return next(iter(quantised.values()))
    if quantised:
        raise LoadError(f"{repo} has several .gguf files; choose one with --gguf_filename: {names}")
    raise LoadError(
        f"{repo} has no model in OpenVINO's form (openvino_model.xml) and no .gguf file. Look for one under "
        f"OpenVINO/ on the hub, or export it: optimum-cli export openvino -m {repo} DIRECTORY"
    )


def _gguf_models(files: Sequence[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """Return the files of each .gguf model by the name of the first: large ones are split. No projectors."""
    models: dict[str, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(".gguf") and "mmproj" not in file.name:
            models.setdefault(PART_NAME.sub(r"-00001-of-\2.gguf", file.name), []).append(file)
    return models


def _pipeline(repo: str, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Choose the files of an image generation pipeline, whose networks have a folder each."""
    if not any(f.name.endswith(f"/{MODEL}") for f in files):
        raise LoadError(
            f"{repo} is not in OpenVINO's form ({MODEL} in its folders). Look for one under OpenVINO/ on the "
            f"hub, or export it: optimum-cli export openvino -m {repo} DIRECTORY"
        )
    patterns = (*KEPT, "*/openvino_*")
    return [f for f in files if any(fnmatch(f.name, pattern) for pattern in patterns)]


def _encoder(repo: str, files: Sequence[RemoteFile]) -> list[RemoteFile]:
    weights = next((w for w in ("model.safetensors", "model.bin") if any(f.name == w for f in files)), None)
    if weights is None:
        raise LoadError(f"{repo} has neither openvino_model.xml nor model.safetensors")
    patterns = (weights, "*.json", "LICENSE*")
    folders = ("onnx/", "openvino/")  # other forms of the same model
    return [f for f in files if any(fnmatch(f.name, p) for p in patterns) and not f.name.startswith(folders)]


def _git_digest(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


PARTIAL = ".hub"  # the folder of partial files


class Hub:
    """A model on the hub. `revision`: a branch, tag or commit; empty for the pinned one, else the default
    branch."""

    in_place = False
    sampling = NO_SAMPLING

    def __init__(self, repo: str, revision: str = "", gguf: str = "", *, encoder: bool = False) -> None:
        self.name, self._revision, self._gguf = repo, revision, gguf
        self._commit = ""
        self._files: list[RemoteFile] = []
        self._encoder = encoder

    def identify(self, old: str) -> str:
        if self._files:
            return self._identity
        revision = self._revision or old.partition(":")[0]
        with _converted_errors(self.name, revision):
            self._commit, files = _listed(self.name, revision)
        self._files = choose(self.name, files, self._gguf, encoder=self._encoder)
        return self._identity

    @property
    def _identity(self) -> str:
        return self._commit + (f":{self._files[0].name}" if self.is_gguf else "")

    @property
    def is_ir(self) -> bool:
        """Return whether it is in OpenVINO IR form; known once it is identified."""
        return any(file.name in (*LANGUAGE_MODELS, SPEECH_ENCODER, INDEX) for file in self._files)

    @property
    def is_gguf(self) -> bool:
        return self._files[0].name.endswith(".gguf")

    def fetch(
        self, directory: Path, *, again: bool, say: Callable[[str], None], changed: Collection[str] = ()
    ) -> Path:
        checked = [f for f in self._files if f.name not in changed]
        missing = [f for f in checked if again or not f.is_at(directory / f.name)]
        if not missing:
            say(f"{directory} has {self.name} at {self._commit}, and every hash is right")
        else:
            size = sum(f.size for f in missing)
            require(directory, size - sum(_begun(directory, f) for f in missing), f"fetching {self.name}")
            say(f"fetching {len(missing)} files ({size / 1e6:.0f} MB) of {self.name} at {self._commit}")
        there = sum(f.size for f in self._files) - sum(f.size for f in missing)
        total = sum(f.size for f in self._files)
        with progress(say, f"fetching {self.name}", total, lambda: there + _arrived(missing, directory)):
            for file in missing:
                with _converted_errors(self.name, self._commit):
                    _fetch(self.name, self._commit, file, directory, again=again)
        return directory / self._files[0].name if self.is_gguf else directory


def fetch_file(
    repo: str, name: str, form: str, directory: Path, *, again: bool, say: Callable[[str], None]
) -> Path:
    """Fetch one file of the default branch; without a name its only one that ends in `form`.

    Raises NotFound, or what the hub's client raises as our errors.
    """
    with _converted_errors(repo, ""):
        commit, files = _listed(repo, "")
    matching = [f for f in files if (f.name == name if name else f.name.endswith(form))]
    if len(matching) != 1 or ".." in Path(matching[0].name).parts or Path(matching[0].name).is_absolute():
        names = ", ".join(f.name for f in files if f.name.endswith(form)) or "none"
        raise NotFound(f"{repo}: name one of its {form} files by @FILE: {names}")
    (file,) = matching
    if again or not file.is_at(directory / file.name):
        say(f"fetching {file.name} ({file.size / 1e6:.0f} MB) of {repo} at {commit}")
        with _converted_errors(repo, commit):
            _fetch(repo, commit, file, directory, again=again)
    return directory / file.name


def _listed(repo: str, revision: str) -> tuple[str, list[RemoteFile]]:
    """Return the commit and its files."""
    api = _library().HfApi(endpoint=_endpoint())
    info = api.model_info(repo, revision=revision or None, files_metadata=True)
    files = [
        RemoteFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else s.blob_id or "", s.lfs is not None)
        for s in info.siblings or ()
    ]
    return info.sha or "", files


def _fetch(repo: str, commit: str, file: RemoteFile, directory: Path, *, again: bool) -> None:
    from huggingface_hub.file_download import http_get

    target, partial = directory / file.name, _partial(directory, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    if again or _begun(directory, file) > file.size:
        partial.unlink(missing_ok=True)
    _library().utils.disable_progress_bars()  # ours shows all files as one
    with partial.open("ab") as out:
        http_get(
            _library().hf_hub_url(repo, file.name, revision=commit, endpoint=_endpoint()),
            out,
            resume_size=out.tell(),
            headers=_library().utils.build_hf_headers(),
            expected_size=file.size,
            displayed_filename=file.name,
        )
    if not file.is_at(partial):
        partial.unlink()
        raise LoadError(f"its hash is not the hub's, {file.sha}; it is not kept", file=file.name)
    partial.replace(target)
    if not any(partial.parent.iterdir()):
        partial.parent.rmdir()


def _partial(directory: Path, file: RemoteFile) -> Path:
    return directory / PARTIAL / f"{file.sha}.part"


def _begun(directory: Path, file: RemoteFile) -> int:
    partial = _partial(directory, file)
    return partial.stat().st_size if partial.exists() else 0


def _arrived(files: list[RemoteFile], directory: Path) -> int:
    """Return the bytes of files that are there, or partly there."""
    targets = [(f, directory / f.name) for f in files]
    return sum(f.size if target.is_file() else _begun(directory, f) for f, target in targets)


def _library() -> Any:
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise LoadError(f"models on the Hugging Face hub need its client; {extra('hub')}") from None
    return huggingface_hub


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _converted_errors(repo: str, revision: str) -> Iterator[None]:
    errors = _library().errors
    try:
        yield
    except errors.GatedRepoError as error:
        page = f"{_endpoint() or 'https://huggingface.co'}/{repo}"
        raise PermissionDenied(
            f"{repo} is gated: accept its terms at {page}, and set HF_TOKEN to your token"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFound(f"the hub has no model {repo}, or it is private; then set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise NotFound(f"{repo} has no revision {revision}") from error
    except errors.HFValidationError as error:
        raise NotFound(f"{repo!r} is not an id on the hub: {error}") from error
    except (errors.HTTPError, ConnectionError) as error:
        raise _unreachable(repo, error) from error


def _unreachable(repo: str, error: Exception) -> OvserveError:
    reason = " ".join(str(error).split())
    if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403):
        return PermissionDenied(f"the hub denies access to {repo}: {reason}")
    return Unavailable(
        f"{repo} cannot be fetched from the hub: {reason or type(error).__name__}. Is there a network? The "
        "same command resumes where it stopped"
    )
