"""Media: the images that a request names, as pixels, and its files, as text.

Everything here is bounded: bytes, pixels, time and number of images of a request. So is the memory of the
images of all requests together, those that wait for the engine included.

Processes decode them: a C decoder fed with untrusted data may crash, hang or exhaust memory, and some
formats are decoded by Python.
"""

from __future__ import annotations

import asyncio
import os
import stat
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.images import Image, ImageSource, PixelForm, Pixels, RasterForm
from ovserve.llm.request import FileSource
from ovserve.sandbox.audio_loader import AudioLoader
from ovserve.sandbox.images.policy import Policy
from ovserve.sandbox.messages import Undecodable
from ovserve.sandbox.pool import Pool

if TYPE_CHECKING:
    from ovserve.sandbox.images.fetch import Fetcher

IMAGE_SECONDS = 10.0  # for one image
MAX_MEMORY = 1 << 30  # bytes of a process's address space
FUNCTIONS = "ovserve.sandbox.images.documents"  # imports Pillow, so the server does not import it
DECODE, READ = f"{FUNCTIONS}:decode", f"{FUNCTIONS}:read"
DECODE_PIXELS, DECODE_RASTER = f"{FUNCTIONS}:decode_pixels", f"{FUNCTIONS}:decode_raster"
MAX_HELD = 1 << 30  # bytes of decoded images in the server
MAX_FILES = 16  # in a request
RETRY_AFTER = 2.0  # seconds
FILE_SCHEME = "file:"
_BASE64 = "base64,"


def read_file(text: str, policy: Policy, max_bytes: int, param: str) -> bytes:
    """Read `text`, a path or a file:// URL. Raises InvalidArgument, which reveals nothing about other
    files."""
    if policy.directory is None:
        raise InvalidArgument.at(param, "files are not allowed on this server (--allowed_local_media_path)")
    given = Path(_path(text, param))
    if ".." in given.parts:
        raise InvalidArgument.at(param, "a path must not contain '..'")
    try:
        path = given.resolve()
    except (OSError, RuntimeError, ValueError) as exc:  # a loop of links; a NUL
        raise InvalidArgument.at(param, "no such file") from exc
    if not path.is_relative_to(policy.directory) or path == policy.directory:
        raise InvalidArgument.at(param, "the file is outside of the allowed directory")
    try:
        with os.fdopen(_open(policy.directory, path.relative_to(policy.directory)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument.at(param, "not a regular file")
            data = file.read(max_bytes + 1)
    except OSError as exc:
        raise InvalidArgument.at(param, f"the file cannot be read: {exc.strerror}") from exc
    if len(data) > max_bytes:
        raise InvalidArgument.at(param, f"the file is larger than {max_bytes} bytes")
    return data


def _path(text: str, param: str) -> str:
    if not text.lower().startswith(FILE_SCHEME):
        return text
    url = urlsplit(text)
    if url.netloc not in ("", "localhost"):
        raise InvalidArgument.at(param, f"a file URL must not name a host, got {url.netloc!r}")
    return unquote(url.path)


def _open(directory: Path, relative: Path) -> int:
    """Open the file from `directory` without following a link, and without waiting for a pipe."""
    *folders, name = relative.parts
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def image_pool(*, seconds: float = IMAGE_SECONDS, memory: int = MAX_MEMORY, most: int = 2) -> Pool:
    """Return processes that decode images and files. Times in seconds, memory in bytes."""
    return Pool(
        f"{FUNCTIONS}:initialize",
        seconds=seconds,
        memory=memory,
        most=most,
        purpose=" to decode images and files",
    )


class Bounds(msgspec.Struct, frozen=True):
    """The operator's limits: --max_images, --max_image_bytes, --max_image_pixels, --media_fetch_timeout.

    The default in bytes is OVMS's for downloads.
    """

    images: int = 16  # per request
    bytes: int = 20_000_000  # of an image file
    pixels: int = 50_000_000
    fetch_seconds: float = 10.0


class Media:
    """Loads images and files. Create it where an event loop is running, or will be."""

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        bounds: Bounds | None = None,
        pool: Pool | None = None,
        audio: AudioLoader | None = None,
        max_held: int = MAX_HELD,
    ) -> None:
        self._policy = policy or Policy()
        self._pool = pool or image_pool()
        self.audio = audio or AudioLoader()
        self._bounds = bounds or Bounds()
        self._fetcher: Fetcher | None = None
        self._max_held = max_held
        self.held = 0  # bytes of images in memory, or about to be

    async def load(self, sources: Sequence[ImageSource]) -> tuple[Image, ...]:
        """Load images in the order of the sources.

        Raises InvalidArgument naming the field of the first unusable one, Unavailable when the server holds
        too many images already.
        """
        _check_count(sources, self._bounds.images, "images")
        return tuple([await self._load(source) for source in sources])

    async def read(self, sources: Sequence[FileSource]) -> tuple[str, ...]:
        """Return the text of each file. Raises InvalidArgument naming the field of the first without text."""
        _check_count(sources, MAX_FILES, "files")
        return tuple([await self._read(source) for source in sources])

    async def raster(self, source: str | Path, form: RasterForm, param: str) -> Image:
        """Decode an image to edit, or a mask: a file that the server has stored, or a URL of the request.

        Raises InvalidArgument naming the field, Unavailable when the server holds too many images already.
        """
        self._check_room()
        if isinstance(source, Path):
            data, base64 = await asyncio.to_thread(self._stored, source, param), False
        else:
            data, base64 = await self._data(source, param)
        return await self._image(param, DECODE_RASTER, data, form, self._bounds.pixels, base64)

    def _stored(self, file: Path, param: str) -> bytes:
        self._check_size(file.stat().st_size, param)
        return file.read_bytes()

    async def pixels(self, files: Sequence[bytes], form: PixelForm, param: str) -> Pixels:
        """Decode the files of one tensor, each an image, to pixels of one size.

        Raises InvalidArgument whose message begins with `param` and names the element.
        """
        if any(len(file) > self._bounds.bytes for file in files):
            raise InvalidArgument(
                f"{param}: an image is larger than {self._bounds.bytes} bytes", param="inputs"
            )
        size = len(files) * form.width[0] * form.height[0] * form.channels
        self._check_room(size)
        decoded: list[Pixels] = []
        for i, file in enumerate(files):
            try:
                decoded.append(
                    await self._pool.decode(DECODE_PIXELS, file, form, self._bounds.pixels, returns=Pixels)
                )
            except Undecodable as error:
                raise InvalidArgument(f"{param}: image {i} cannot be read: {error}", param="inputs") from None
            if sum(len(pixels.data) for pixels in decoded) > self._max_held:
                raise InvalidArgument(f"{param}: the images are too large together", param="inputs")
        if len({(pixels.width, pixels.height) for pixels in decoded}) > 1:
            raise InvalidArgument(f"{param}: the images of one request must have one size", param="inputs")
        first = decoded[0]
        return Pixels(first.width, first.height, b"".join(pixels.data for pixels in decoded))

    async def _read(self, source: FileSource) -> str:
        data = source.data.partition(_BASE64)[2] if source.data.startswith("data:") else source.data
        self._check_size(len(data) * 3 // 4, source.param, "file")
        try:
            text: str = await self._pool.decode(READ, data.encode(errors="replace"), returns=str)
        except Undecodable as error:
            raise InvalidArgument.at(source.param, f"the file cannot be read: {error}") from None
        return text

    async def _load(self, source: ImageSource) -> Image:
        self._check_room()
        data, base64 = await self._data(source.url, source.param)
        return await self._image(source.param, DECODE, data, source.detail, self._bounds.pixels, base64)

    async def _image(self, param: str, function: str, *arguments: Any) -> Image:
        """Return a decoded image, whose memory counts as held. Raises InvalidArgument."""
        try:
            image: Image = await self._pool.decode(function, *arguments, returns=Image)
        except Undecodable as error:
            raise InvalidArgument.at(param, f"the image cannot be read: {error}") from None
        self.held += len(image.rgb)
        weakref.finalize(image, self._let_go, len(image.rgb))
        return image

    def _check_room(self, size: int = 0) -> None:
        if self.held + size > self._max_held:
            raise Unavailable("the server holds too many images", retry_after=RETRY_AFTER)

    def _check_size(self, size: int, param: str, what: str = "image") -> None:
        if size > self._bounds.bytes:
            raise InvalidArgument.at(param, f"the {what} is larger than {self._bounds.bytes} bytes")

    def _let_go(self, size: int) -> None:
        self.held -= size

    async def _data(self, url: str, param: str) -> tuple[bytes, bool]:
        """Return the file, or its base64 form (true). A string that is not a URL is a path, as in OVMS."""
        scheme = url[:8].lower()
        if scheme.startswith("data:") or scheme.startswith(_BASE64):
            _, found, text = url.partition(_BASE64)
            if not found:
                raise InvalidArgument.at(param, "expected a data URL with base64")
            self._check_size(len(text) * 3 // 4, param)
            return text.encode(errors="replace"), True
        if scheme.startswith(("http://", "https://")):
            return await self._fetch(url, param), False
        if "://" in url[:16] and not scheme.startswith(FILE_SCHEME):
            raise InvalidArgument.at(
                param, f"expected a data, http or https URL, or a file; got {url[:16]!r}..."
            )
        return await asyncio.to_thread(read_file, url, self._policy, self._bounds.bytes, param), False

    async def _fetch(self, url: str, param: str) -> bytes:
        if self._fetcher is None:
            # aiohttp, which only the HTTP transport has imported, while the engine loads
            from ovserve.sandbox.images.fetch import Fetcher

            self._fetcher = Fetcher(
                self._policy, max_bytes=self._bounds.bytes, seconds=self._bounds.fetch_seconds
            )
        return await self._fetcher.fetch(url, param)

    async def stop(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.stop()
        await self._pool.stop()
        await self.audio.stop()


def _check_count(sources: Sequence[ImageSource | FileSource], most: int, what: str) -> None:
    if len(sources) > most:
        raise InvalidArgument.at(
            sources[most].param, f"{len(sources)} {what} are too many; a request may have {most}"
        )
