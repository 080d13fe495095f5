package connect

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
)

const (
	flagCompressed = 0x01
	flagEndStream  = 0x02
	prefixSize     = 5
)

// MaxMessageBytes bounds one message from a client. The SDKs send stdin in one message, so it is large.
const MaxMessageBytes = 64 << 20

// bigMessageBytes is where a message counts as big; bigMessages lets three of those in at a time, so that
// many clients at once cannot multiply MaxMessageBytes into the memory of the sandbox.
const bigMessageBytes = 4 << 20

var bigMessages = make(chan struct{}, 3)

// readMessage reads exactly size bytes, or fewer if the body ends (io.ErrUnexpectedEOF). The buffer
// grows with what arrives: a length that is announced but never sent costs nothing.
func readMessage(body io.Reader, size int64) ([]byte, error) {
	if size > bigMessageBytes {
		bigMessages <- struct{}{}
		defer func() { <-bigMessages }()
	}
	data, err := io.ReadAll(io.LimitReader(body, size))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) < size {
		return nil, io.ErrUnexpectedEOF
	}
	return data, nil
}

// readEnvelope reads the next message of a stream body. It returns io.EOF at a clean end.
func readEnvelope(body io.Reader) ([]byte, error) {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(body, prefix[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, Errorf(CodeInvalidArgument, "the request ended inside the prefix of an envelope")
	}
	size := int64(binary.BigEndian.Uint32(prefix[1:]))
	switch {
	case prefix[0]&flagCompressed != 0:
		return nil, Errorf(CodeUnimplemented, "compressed envelopes are not supported")
	case prefix[0]&^flagEndStream != 0:
		return nil, Errorf(CodeInvalidArgument, "unknown envelope flags 0x%02x", prefix[0])
	case size > MaxMessageBytes:
		return nil, Errorf(CodeResourceExhausted, "a message of %d bytes is larger than the limit of %d", size, MaxMessageBytes)
	}
	data, err := readMessage(body, size)
	if err != nil {
		return nil, Errorf(CodeInvalidArgument, "the request ended inside an envelope")
	}
	if prefix[0]&flagEndStream != 0 {
		return nil, io.EOF
	}
	return data, nil
}

// Envelope frames a JSON message for a stream.
func Envelope(payload []byte) []byte { return frame(0, payload) }

func frame(flags byte, payload []byte) []byte {
	framed := make([]byte, prefixSize, prefixSize+len(payload))
	PutPrefix(framed, flags, len(payload))
	return append(framed, payload...)
}

// PutPrefix writes the five bytes before a message of size bytes into dst.
func PutPrefix(dst []byte, flags byte, size int) {
	dst[0] = flags
	binary.BigEndian.PutUint32(dst[1:prefixSize], uint32(size))
}

// endOfStream is the last envelope of a response; cause is nil for a clean end.
func endOfStream(cause error) []byte {
	if cause == nil {
		return frame(flagEndStream, []byte("{}"))
	}
	payload, err := json.Marshal(map[string]*Error{"error": AsError(cause)})
	if err != nil {
		payload = []byte(`{"error":{"code":"internal","message":"the error could not be encoded"}}`)
	}
	return frame(flagEndStream, payload)
}

// decode reads a JSON message; unknown fields are ignored, as every Connect client and server does.
func decode(data []byte, message any) error {
	if err := json.Unmarshal(data, message); err != nil {
		return Errorf(CodeInvalidArgument, "the message is not valid: %v", err)
	}
	return nil
}
