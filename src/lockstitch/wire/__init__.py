"""Messages as bytes, and back; no sockets, no threads, no time.

messages/     the vocabulary: all that one worker can say to another
encodings.py  the ways to write a value, and the types that higher floors teach the pickler
pickling.py   values of programs → payloads; tensors are extracted, never pickled
compiled.py   functions that torch.compile has compiled
subclasses.py tensors of types that are not torch's plain ones
unpicklable.py  which part of a value could not be pickled
unpickling.py payloads → values
arrays.py     NumPy's arrays for that
restricted.py what a peer has pickled, read where a registry says what it may name
tensors.py    headers and memory of tensors
sharing.py    tensors of one message that overlap
frames.py     what a frame is: lengths and limits
encoding.py   messages → frames
decoding.py   bytes → messages
scanning.py   looking through fields before marshal reads them
authentication.py  frames that only the peer can have made
layouts.py    the fields of each message class ⇄ plain values
tensor_receiver.py  tensors arriving: into memory allocated from their headers
windows.py    tensors arriving: in memory that the sender has filled
staging.py    tensors of other devices, on their way through the host
"""
