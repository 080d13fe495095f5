// Package process runs and watches the commands of the sandbox, and serves the protocol's process service.
package process

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"forkyard.dev/forkyard/internal/envd/activeclock"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/platform"
	"forkyard.dev/forkyard/internal/envd/procfs"
)

const (
	pipeChunk = 32 << 10
	ptyChunk  = 16 << 10
	// ptyGrace is how long a terminal that something still holds open may go on after its leader has
	// exited. Without such a holder the end of the output is seen at once.
	ptyGrace = 100 * time.Millisecond
)

// Sink takes the output of a process. Output is called from one goroutine a stream, and may block: the
// process then blocks too.
type Sink interface {
	Output(stream Stream, data []byte)
	// Finish is called once, after the last Output.
	Finish()
}

// Process is one started command and its tree of descendants.
type Process struct {
	PID     int
	Spec    Spec
	Info    Info
	Tag     *string
	Started time.Time

	manager *Manager
	marker  string // entry of the environment by which descendants are known
	ends    *ends
	sink    Sink
	status  syscall.WaitStatus

	// exited is closed when the command itself has ended and was reaped; done when also all output was
	// handed on, which a descendant that holds the pipes can delay.
	exited, done chan struct{}
	// drained is closed when the output written up to the exit was handed on; only with Spec of a call.
	drained chan struct{}

	writing chan struct{} // holds one token: the right to write to stdin or the terminal

	mu       sync.Mutex
	timedOut bool
	killing  bool
	stopRead bool // pumps end at their next interruption
	deadline *activeclock.Timer
}

// Exited is closed when the command itself has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Done is closed when the command has ended and all its output was handed on.
func (p *Process) Done() <-chan struct{} { return p.done }

// Drained is closed when the command has ended and its output up to then was handed on; descendants may
// write more. Only for processes started with DrainAtExit.
func (p *Process) Drained() <-chan struct{} { return p.drained }

// Status is the exit status; it may be read after Exited.
func (p *Process) Status() syscall.WaitStatus { return p.status }

// TimedOut says whether the deadline ended the process.
func (p *Process) TimedOut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.timedOut
}

// run pumps the output until the process is over; exit delivers the status of the leader.
func (p *Process) run(exit <-chan syscall.WaitStatus, drainAtExit bool) {
	var pumps, drains sync.WaitGroup
	pump := func(stream Stream, file *os.File, size int) {
		if file == nil {
			return
		}
		pumps.Add(1)
		drains.Add(1)
		go func() {
			defer pumps.Done()
			p.pump(stream, file, size, sync.OnceFunc(drains.Done))
		}()
	}
	pump(Stdout, p.ends.stdout, pipeChunk)
	pump(Stderr, p.ends.stderr, pipeChunk)
	pump(Terminal, p.ends.pty, ptyChunk)
	go func() {
		p.status = <-exit
		close(p.exited)
		switch {
		case p.Spec.PTY != nil:
			p.interruptPumps(ptyGrace, true)
		case drainAtExit:
			p.interruptPumps(0, false)
		}
		if drainAtExit {
			drains.Wait()
			close(p.drained)
		}
		pumps.Wait()
		p.finish()
	}()
}

func (p *Process) finish() {
	p.mu.Lock()
	if p.deadline != nil {
		p.deadline.Stop()
	}
	p.mu.Unlock()
	p.ends.closeOurs()
	p.manager.retire(p)
	close(p.done)
	p.sink.Finish()
}

// pump hands one output on until it ends. drained is called when everything written before an
// interruption, or before the end, was handed on.
func (p *Process) pump(stream Stream, file *os.File, size int, drained func()) {
	buffer := make([]byte, size)
	defer drained()
	for {
		n, err := file.Read(buffer)
		if n > 0 {
			p.sink.Output(stream, buffer[:n])
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			ended := p.drain(stream, file, buffer)
			drained()
			if ended || !p.resumeRead(file) {
				return
			}
		default: // io.EOF of a pipe, EIO of a terminal
			return
		}
	}
}

// drain hands on what is in the pipe now, without waiting for more; true at the end of the output.
func (p *Process) drain(stream Stream, file *os.File, buffer []byte) bool {
	raw, err := file.SyscallConn()
	if err != nil {
		return true
	}
	for {
		var n int
		var readErr error
		// Control, unlike Read, does not look at the deadline that has just passed.
		err := raw.Control(func(fd uintptr) { n, readErr = unix.Read(int(fd), buffer) })
		if n > 0 {
			p.sink.Output(stream, buffer[:n])
			continue
		}
		if errors.Is(readErr, unix.EINTR) {
			continue
		}
		return err != nil || !errors.Is(readErr, unix.EAGAIN)
	}
}

// interruptPumps makes the pumps drain after a time; with stop they then end.
func (p *Process) interruptPumps(after time.Duration, stop bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopRead = p.stopRead || stop
	for _, file := range []*os.File{p.ends.stdout, p.ends.stderr, p.ends.pty} {
		if file != nil {
			_ = file.SetReadDeadline(time.Now().Add(after))
		}
	}
}

func (p *Process) resumeRead(file *os.File) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopRead {
		return false
	}
	return file.SetReadDeadline(time.Time{}) == nil
}

// Write gives input to the process; it blocks while the process does not read, until ctx ends.
func (p *Process) Write(ctx context.Context, file *os.File, data []byte) error {
	select {
	case <-p.writing:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		return notRunning(p.PID)
	}
	defer func() { p.writing <- struct{}{} }()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = file.SetWriteDeadline(time.Now())
	})
	_, err := file.Write(data)
	if !stop() {
		<-interrupted // it may not have come to it yet, and would spoil the next write
		_ = file.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE):
		return connect.Errorf(connect.CodeFailedPrecondition, "stdin of process %d is closed", p.PID)
	case errors.Is(err, syscall.EIO):
		return notRunning(p.PID)
	default:
		return connect.Errorf(connect.CodeInternal, "writing to process %d failed: %v", p.PID, err)
	}
}

// Feed writes all of data to stdin and then closes it; it returns when the process has read it or is over.
func (p *Process) Feed(data []byte) {
	_ = p.Write(context.Background(), p.ends.stdin, data)
	_ = p.CloseStdin()
}

// CloseStdin ends the input of the process; a second time it does nothing.
func (p *Process) CloseStdin() error {
	if p.Spec.PTY != nil {
		return connect.Errorf(connect.CodeFailedPrecondition, "process %d has a terminal: send ctrl-D (0x04) instead", p.PID)
	}
	if p.ends.stdin != nil {
		_ = p.ends.stdin.Close()
	}
	return nil
}

// Resize changes the size of the terminal.
func (p *Process) Resize(size Size) error {
	if p.ends.pty == nil {
		return connect.Errorf(connect.CodeFailedPrecondition, "process %d has no terminal", p.PID)
	}
	if !size.valid() {
		return connect.Errorf(connect.CodeInvalidArgument, "a terminal of %d columns and %d rows is too large", size.Cols, size.Rows)
	}
	raw, err := p.ends.pty.SyscallConn()
	if err != nil {
		return notRunning(p.PID)
	}
	var sizeErr error
	if err := raw.Control(func(fd uintptr) { sizeErr = setSize(int(fd), size) }); err != nil || sizeErr != nil {
		return notRunning(p.PID)
	}
	if platform.GVisor() {
		p.signalSession(syscall.SIGWINCH)
	}
	return nil
}

// signalSession tells a resize where the kernel does not. gVisor does not say either which process group is
// in the foreground, so all in the session of the terminal get it; who does not care ignores it.
func (p *Process) signalSession(signal syscall.Signal) {
	for _, process := range procfs.Processes() {
		if process.SID == p.PID {
			_ = syscall.Kill(process.PID, signal)
		}
	}
}

func notRunning(pid int) error {
	return connect.Errorf(connect.CodeNotFound, "process with pid %d not found", pid)
}
