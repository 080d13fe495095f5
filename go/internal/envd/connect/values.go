package connect

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// Bytes is a protobuf `bytes` field: base64 on the wire. It reads the standard and the URL alphabet,
// padded or not, as protobuf's JSON mapping asks; it writes the padded standard one.
type Bytes []byte

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return errors.New("bytes must be a base64 string")
	}
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		encoding = base64.RawURLEncoding
	}
	decoded, err := encoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return errors.New("bytes are not valid base64")
	}
	*b = decoded
	return nil
}

// Uint32 is a protobuf `uint32` field; it reads numbers and numbers in strings.
type Uint32 uint32

// UnmarshalJSON implements json.Unmarshaler.
func (u *Uint32) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text == "null" {
		return nil
	}
	if unquoted, err := strconv.Unquote(text); err == nil {
		text = unquoted
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value != math.Trunc(value) || value < 0 || value > math.MaxUint32 {
		return errors.New("not an unsigned 32-bit number")
	}
	*u = Uint32(value)
	return nil
}

// Int64 is a protobuf `int64` field: a string on the wire.
type Int64 int64

// MarshalJSON implements json.Marshaler.
func (i Int64) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, strconv.FormatInt(int64(i), 10)), nil
}

// Empty is a message without fields.
type Empty struct{}
