"""Messages between two ranks: send, recv, from anybody too."""

from rueda import _ffi
from rueda.common.exceptions import HorovodInternalError
from rueda.torch.distributed import _gpus, _profile
from rueda.torch.distributed._errors import as_backend_error
from rueda.torch.distributed._options import only
from rueda.torch.distributed._tensors import address, copied, form, packed, room
from rueda.torch.distributed._work import Work

MOST_TAG = 2**31 - 3  # the two above are those of monitored_barrier


class Messages:
    """A part of `ProcessGroup`. A message belongs to its group: tags of groups are apart."""

    def send(self, tensors, destination, tag=0):
        tensor = only(tensors, "send")
        source = packed(tensor, "send")
        peer = self._peer("send", destination)
        return self._message("send", _ffi.SEND, tensor, source, peer, tag, None)

    def recv(self, tensors, source, tag=0):
        return self._receive("recv", only(tensors, "recv"), self._peer("recv", source), tag)

    def recv_anysource(self, tensors, tag=0):
        return self._receive("recv from any rank", only(tensors, "recv"), -1, tag)

    def _receive(self, name, tensor, peer, tag):
        target = room(tensor, name)

        def finish(work):
            sender = peer if peer >= 0 else work._requests[0].result()
            work._source = self._ranks.index(sender)
            if target is not tensor:
                copied(target, tensor)

        return self._message(name, _ffi.RECV, tensor, target, peer, tag, finish)

    def _peer(self, name, rank):
        if not 0 <= rank < self._size:
            raise ValueError(
                f"{name}: invalid rank {rank}: the group has ranks 0 to {self._size - 1}"
            )
        return self._ranks[rank]

    def _message(self, name, kind, tensor, memory, peer, tag, finish):
        if not 0 <= tag <= MOST_TAG:
            raise ValueError(f"{name}: the tag must be 0 to {MOST_TAG}, not {tag}")
        if _profile.is_on():
            with _profile.event(name, (tensor,)):
                return self._posted(name, kind, tensor, memory, peer, tag, finish)
        return self._posted(name, kind, tensor, memory, peer, tag, finish)

    def _posted(self, name, kind, tensor, memory, peer, tag, finish):
        dtype, parts = form(tensor)
        device = _gpus.device_of(tensor)
        try:
            request = self._group.start_message(
                kind,
                dtype,
                memory.numel() * parts,
                peer,
                tag,
                address(memory),
                device,
                _gpus.stream(device),
            )
        except HorovodInternalError as error:
            raise as_backend_error(error) from None
        return Work(self, name, (request,), None, memory, [tensor], finish, self._seconds, device)
