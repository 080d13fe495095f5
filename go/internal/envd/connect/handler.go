package connect

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	unaryType  = "application/json"
	streamType = "application/connect+json"
)

// DefaultKeepalive is how long a stream may be silent before a keepalive when the client names no interval.
const DefaultKeepalive = 90 * time.Second

// restTime is how long a client may take to end its request after it was answered.
const restTime = 5 * time.Second

// Unary serves one call with one request and one answer.
func Unary[Req, Res any](call func(ctx context.Context, r *http.Request, req *Req) (*Res, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !checkRequest(w, r, unaryType) {
			return
		}
		ctx, cancel, err := withTimeout(r)
		if err != nil {
			writeUnaryError(w, err)
			return
		}
		defer cancel()
		req := new(Req)
		if err := readUnary(r, req); err != nil {
			writeUnaryError(w, err)
			return
		}
		res, err := call(ctx, r, req)
		if err != nil {
			writeUnaryError(w, err)
			return
		}
		if streamed, ok := any(res).(io.WriterTo); ok {
			w.Header().Set("Content-Type", unaryType)
			_, _ = streamed.WriteTo(w) // the status is sent: an error here is the client going away
			return
		}
		writeUnary(w, http.StatusOK, res)
	})
}

// ServerStream serves a call with one request and a stream of answers.
func ServerStream[Req any](call func(ctx context.Context, r *http.Request, req *Req, out *Sender) error) http.Handler {
	return serveStream(func(ctx context.Context, r *http.Request, out *Sender) (<-chan bool, error) {
		req := new(Req)
		data, err := readEnvelope(r.Body)
		if errors.Is(err, io.EOF) {
			err = Errorf(CodeInvalidArgument, "the request holds no message")
		}
		if err == nil {
			err = decode(data, req)
		}
		rest := discardRest(r.Body)
		if err == nil {
			err = call(ctx, r, req, out)
		}
		return rest, err
	})
}

// ClientStream serves a call with a stream of requests and one answer.
func ClientStream[Req, Res any](call func(ctx context.Context, r *http.Request, in *Receiver[Req]) (*Res, error)) http.Handler {
	return serveStream(func(ctx context.Context, r *http.Request, out *Sender) (<-chan bool, error) {
		res, err := call(ctx, r, &Receiver[Req]{body: r.Body})
		if err == nil {
			err = out.SendLast(res)
		}
		return discardRest(r.Body), err
	})
}

// serveStream opens a stream, and ends it with the error of answer, nil for a clean end. answer also
// returns its discardRest of the body.
func serveStream(answer func(ctx context.Context, r *http.Request, out *Sender) (<-chan bool, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !checkRequest(w, r, streamType) {
			return
		}
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex() // only HTTP/1 needs it and has it
		w.Header().Set("Content-Type", streamType)
		out := &Sender{w: w, control: control}
		ctx, cancel, err := streamContext(r)
		if err != nil {
			out.conclude(err, discardRest(r.Body))
			return
		}
		defer cancel()
		rest, err := answer(ctx, r, out)
		out.conclude(err, rest)
	})
}

// streamContext reads the headers of a stream's request.
func streamContext(r *http.Request) (context.Context, context.CancelFunc, error) {
	if encoding := r.Header.Get("Connect-Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, nil, Errorf(CodeUnimplemented, "unknown compression %q: only identity is supported", encoding)
	}
	return withTimeout(r)
}

// discardRest reads a request's body to its end: net/http notices only then that a client left. What is
// sent says whether the end came.
func discardRest(body io.Reader) <-chan bool {
	rest := make(chan bool, 1)
	go func() {
		_, err := io.CopyN(io.Discard, body, 1<<20)
		rest <- errors.Is(err, io.EOF)
	}()
	return rest
}

// Receiver reads the messages of a client stream.
type Receiver[Req any] struct{ body io.Reader }

// Next returns the next message, or io.EOF when the client has ended the stream.
func (in *Receiver[Req]) Next() (*Req, error) {
	data, err := readEnvelope(in.body)
	if err != nil {
		return nil, err
	}
	req := new(Req)
	return req, decode(data, req)
}

// Sender writes the messages of a response stream; it is used by one goroutine at a time.
type Sender struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// Send encodes a message, and flushes it to the client at once.
func (s *Sender) Send(message any) error {
	if err := s.SendLast(message); err != nil {
		return err
	}
	return s.control.Flush()
}

// SendLast is Send without the flush, for the message before the end of the stream: both then travel
// in one packet.
func (s *Sender) SendLast(message any) error {
	payload, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return s.write(Envelope(payload))
}

// SendEnvelope sends a message that is framed already.
func (s *Sender) SendEnvelope(envelope []byte) error {
	if err := s.write(envelope); err != nil {
		return err
	}
	return s.control.Flush()
}

// SendEnvelopeLater is SendEnvelope without the flush.
func (s *Sender) SendEnvelopeLater(envelope []byte) error { return s.write(envelope) }

// SetWriteDeadline makes writes to a client that does not read fail from then on.
func (s *Sender) SetWriteDeadline(at time.Time) { _ = s.control.SetWriteDeadline(at) }

func (s *Sender) write(envelope []byte) error {
	_, err := s.w.Write(envelope)
	return err
}

// conclude sends the last envelope, and lets the client end its request, for a while. net/http would cut
// the reader off when the handler returns, forget that, and take what comes then for the next request; or
// it would read the rest itself, and then in two places at once.
func (s *Sender) conclude(cause error, rest <-chan bool) {
	_ = s.write(endOfStream(cause))
	select {
	case whole := <-rest:
		if whole {
			return // net/http flushes
		}
		_ = s.control.Flush()
	default:
		_ = s.control.Flush()
		select {
		case whole := <-rest:
			if whole {
				return
			}
		case <-time.After(restTime):
		}
	}
	panic(http.ErrAbortHandler) // the only way to close the connection now
}

// checkRequest answers requests that are no Connect call of the wanted kind.
func checkRequest(w http.ResponseWriter, r *http.Request, wantType string) bool {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return false
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != wantType {
		w.Header().Set("Accept-Post", wantType)
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return false
	}
	if version := r.Header.Get("Connect-Protocol-Version"); version != "" && version != "1" {
		writeUnaryError(w, Errorf(CodeInvalidArgument, "connect protocol version must be \"1\", got %q", version))
		return false
	}
	return true
}

// Timeout is the deadline the client asked for, 0 for none.
func Timeout(header http.Header) (time.Duration, error) {
	text := header.Get("Connect-Timeout-Ms")
	if text == "" {
		return 0, nil
	}
	ms, err := strconv.ParseUint(text, 10, 63)
	if err != nil || len(text) > 10 {
		return 0, Errorf(CodeInvalidArgument, "Connect-Timeout-Ms must be a number of at most 10 digits")
	}
	// A timeout of zero is one that has passed; the smallest positive duration says the same.
	return max(time.Duration(ms)*time.Millisecond, 1), nil
}

// Keepalive is the client's keepalive interval, or the default.
func Keepalive(header http.Header) time.Duration {
	seconds, err := strconv.ParseUint(header.Get("Keepalive-Ping-Interval"), 10, 31)
	if err != nil || seconds == 0 {
		return DefaultKeepalive
	}
	return time.Duration(seconds) * time.Second
}

func withTimeout(r *http.Request) (context.Context, context.CancelFunc, error) {
	timeout, err := Timeout(r.Header)
	if err != nil {
		return nil, nil, err
	}
	if timeout == 0 {
		ctx, cancel := context.WithCancel(r.Context())
		return ctx, cancel, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	return ctx, cancel, nil
}

func readUnary(r *http.Request, message any) error {
	body := io.Reader(r.Body)
	switch encoding := strings.ToLower(r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip":
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return Errorf(CodeInvalidArgument, "the body is not valid gzip")
		}
		body = unzipped
	default:
		return Errorf(CodeUnimplemented, "unknown compression %q: supported are identity and gzip", encoding)
	}
	if r.ContentLength > MaxMessageBytes {
		return tooLarge()
	}
	data, err := readAllBounded(body)
	if err != nil {
		return err
	}
	return decode(data, message)
}

// readAllBounded reads a body of unknown length up to MaxMessageBytes.
func readAllBounded(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, bigMessageBytes))
	if err != nil {
		return nil, Errorf(CodeInvalidArgument, "the request body could not be read: %v", err)
	}
	if len(data) < bigMessageBytes {
		return data, nil
	}
	bigMessages <- struct{}{}
	defer func() { <-bigMessages }()
	rest, err := io.ReadAll(io.LimitReader(body, MaxMessageBytes-bigMessageBytes+1))
	if err != nil {
		return nil, Errorf(CodeInvalidArgument, "the request body could not be read: %v", err)
	}
	if len(data)+len(rest) > MaxMessageBytes {
		return nil, tooLarge()
	}
	return append(data, rest...), nil
}

func tooLarge() error {
	return Errorf(CodeResourceExhausted, "the message is larger than the limit of %d bytes", MaxMessageBytes)
}

func writeUnaryError(w http.ResponseWriter, err error) {
	coded := AsError(err)
	writeUnary(w, coded.Code.HTTPStatus(), coded)
}

func writeUnary(w http.ResponseWriter, status int, message any) {
	payload, err := json.Marshal(message)
	if err != nil {
		status, payload = http.StatusInternalServerError, []byte(`{"code":"internal","message":"the answer could not be encoded"}`)
	}
	w.Header().Set("Content-Type", unaryType)
	w.Header().Set("Content-Length", strconv.Itoa(len(payload)))
	w.WriteHeader(status)
	_, _ = w.Write(payload)
}
