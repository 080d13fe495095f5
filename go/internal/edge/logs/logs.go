// Package logs writes JSON lines without ever blocking or killing the process that logs.
package logs

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	queueLength = 1024
	// maxPerSecond bounds what hostile clients and sandboxes can make us write.
	maxPerSecond = 200
	// maxText bounds one text of a line, in bytes.
	maxText = 500
)

// Sink is an io.Writer that hands lines to a background writer. When the queue is full, or more than 200 lines came in
// one second, lines are dropped and counted: a reader that stopped reading our stderr must not stop the proxy.
type Sink struct {
	path    string
	queue   chan []byte
	reopen  chan struct{}
	stop    chan struct{}
	done    chan struct{}
	dropped atomic.Int64

	mu      sync.Mutex
	second  int64
	written int
}

// Open makes a sink that appends to the file at path, or to stderr when path is empty.
func Open(path string) (*Sink, error) {
	out, err := openOutput(path)
	if err != nil {
		return nil, err
	}
	return newSink(path, out), nil
}

func newSink(path string, out io.WriteCloser) *Sink {
	s := &Sink{
		path:   path,
		queue:  make(chan []byte, queueLength),
		reopen: make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	go s.run(out)
	return s
}

// Logger returns a structured logger on the sink. Long texts are cut: some quote what a sandbox sent.
func (s *Sink) Logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{ReplaceAttr: cut}))
}

func cut(_ []string, a slog.Attr) slog.Attr {
	if text, ok := a.Value.Any().(string); ok && len(text) > maxText {
		a.Value = slog.StringValue(strings.ToValidUTF8(text[:maxText], "") + "...")
	}
	return a
}

// Write queues a copy of line; it never fails and never blocks.
func (s *Sink) Write(line []byte) (int, error) {
	if s.overRate(time.Now().Unix()) {
		s.dropped.Add(1)
		return len(line), nil
	}
	select {
	case s.queue <- append([]byte(nil), line...):
	default:
		s.dropped.Add(1)
	}
	return len(line), nil
}

// Dropped returns how many lines were not written.
func (s *Sink) Dropped() int64 { return s.dropped.Load() }

// Reopen opens the file anew, for log rotation.
func (s *Sink) Reopen() {
	select {
	case s.reopen <- struct{}{}:
	default:
	}
}

// Close writes what is queued, waiting at most a second. Lines written afterwards are lost. Call it once.
func (s *Sink) Close() {
	close(s.stop)
	select {
	case <-s.done:
	case <-time.After(time.Second):
	}
}

func (s *Sink) overRate(second int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if second != s.second {
		s.second, s.written = second, 0
	}
	s.written++
	return s.written > maxPerSecond
}

func (s *Sink) run(out io.WriteCloser) {
	defer close(s.done)
	for {
		select {
		case line := <-s.queue:
			s.put(out, line)
		case <-s.reopen:
			if fresh, err := openOutput(s.path); err == nil {
				_ = out.Close()
				out = fresh
			}
		case <-s.stop:
			s.drain(out)
			_ = out.Close()
			return
		}
	}
}

func (s *Sink) drain(out io.Writer) {
	for {
		select {
		case line := <-s.queue:
			s.put(out, line)
		default:
			return
		}
	}
}

func (s *Sink) put(out io.Writer, line []byte) {
	if _, err := out.Write(line); err != nil {
		s.dropped.Add(1)
	}
}

func openOutput(path string) (io.WriteCloser, error) {
	if path == "" {
		return stderr{}, nil
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
}

// stderr is os.Stderr that stays open.
type stderr struct{}

func (stderr) Write(p []byte) (int, error) { return os.Stderr.Write(p) }
func (stderr) Close() error                { return nil }
