package process

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/paths"
	"forkyard.dev/forkyard/internal/envd/settings"
	"forkyard.dev/forkyard/internal/envd/users"
)

const (
	// killAnswer is how long SendSignal waits for a killed process to be gone, so that the caller finds no
	// such pid afterwards.
	killAnswer = 2 * time.Second
	// writeSlack is how long after its deadline a stream may still wait for a client that does not read.
	writeSlack = 10 * time.Second
)

// Service is the RPC service process.Process.
type Service struct {
	Manager  *Manager
	Settings *settings.Store
}

// Register adds the service's routes.
func (s *Service) Register(mux *http.ServeMux) {
	mux.Handle("/process.Process/Start", connect.ServerStream(s.start))
	mux.Handle("/process.Process/Connect", connect.ServerStream(s.connect))
	mux.Handle("/process.Process/List", connect.Unary(s.list))
	mux.Handle("/process.Process/Update", connect.Unary(s.update))
	mux.Handle("/process.Process/SendInput", connect.Unary(s.sendInput))
	mux.Handle("/process.Process/StreamInput", connect.ClientStream(s.streamInput))
	mux.Handle("/process.Process/SendSignal", connect.Unary(s.sendSignal))
	mux.Handle("/process.Process/CloseStdin", connect.Unary(s.closeStdin))
}

// ResolveSpec fills what a request leaves open: user, working directory and the rest of the environment.
func ResolveSpec(current *settings.Settings, user users.User, cmd string, args []string, envs map[string]string, cwd *string) (Spec, error) {
	spec := Spec{Cmd: cmd, Args: args, Envs: current.Environment(user, envs), User: user}
	asked := ""
	if cwd != nil {
		asked = *cwd
	}
	var err error
	if spec.Cwd, err = paths.Resolve(asked, user, current.DefaultWorkdir); err != nil {
		return Spec{}, err
	}
	if asked == "" && current.DefaultWorkdir == "" {
		if info, err := os.Stat(spec.Cwd); err != nil || !info.IsDir() {
			spec.Cwd = "/" // a user without a home, as images without a passwd file have
		}
	}
	return spec, nil
}

func (s *Service) start(ctx context.Context, r *http.Request, req *startRequest, out *connect.Sender) error {
	if req.Process == nil {
		return connect.Errorf(connect.CodeInvalidArgument, "the request names no process")
	}
	current := s.Settings.Get()
	user, err := access.User(r, current)
	if err != nil {
		return err
	}
	timeout, err := connect.Timeout(r.Header)
	if err != nil {
		return err
	}
	spec, err := ResolveSpec(current, user, req.Process.Cmd, req.Process.Args, req.Process.Envs, req.Process.Cwd)
	if err != nil {
		return err
	}
	spec.Stdin = req.Stdin == nil || *req.Stdin
	if req.PTY != nil {
		size := req.PTY.size()
		spec.PTY = &size
	}
	output := newHub()
	subscription := output.subscribe()
	defer subscription.Close()
	p, err := s.Manager.Start(spec, Options{
		Tag: req.Tag, Timeout: timeout, Sink: output,
		Info: Info{Cmd: req.Process.Cmd, Args: req.Process.Args, Envs: req.Process.Envs, Cwd: req.Process.Cwd},
	})
	if err != nil {
		return err
	}
	return relay(ctx, r, p, subscription, out, true)
}

func (s *Service) connect(ctx context.Context, r *http.Request, req *connectRequest, out *connect.Sender) error {
	p, err := s.find(req.Process, true)
	if err != nil {
		return err
	}
	output, ok := p.sink.(*hub)
	if !ok {
		return notRunning(p.PID)
	}
	subscription := output.subscribe()
	defer subscription.Close()
	return relay(ctx, r, p, subscription, out, false)
}

// relay sends the events of a process until it ends or the call does. owner is the stream that started the
// process: when the process is killed by its deadline, that is how this stream ends.
func relay(ctx context.Context, r *http.Request, p *Process, subscription *Subscription, out *connect.Sender, owner bool) error {
	if deadline, ok := ctx.Deadline(); ok {
		out.SetWriteDeadline(deadline.Add(writeSlack))
	}
	if err := out.Send(eventResponse{Event: eventMessage{Start: &startEvent{PID: p.PID}}}); err != nil {
		return err
	}
	keepalive := connect.Keepalive(r.Header)
	idle := time.NewTimer(keepalive)
	defer idle.Stop()
	for {
		select {
		case c, more := <-subscription.chunks:
			if !more {
				if owner && p.TimedOut() {
					return context.DeadlineExceeded
				}
				return out.SendLast(eventResponse{Event: eventMessage{End: newEndEvent(p.Status())}})
			}
			if err := sendChunk(out, c, len(subscription.chunks) == 0); err != nil {
				return err
			}
			idle.Reset(keepalive)
		case <-idle.C:
			if err := out.Send(eventResponse{Event: eventMessage{Keepalive: &connect.Empty{}}}); err != nil {
				return err
			}
			idle.Reset(keepalive)
		case <-ctx.Done():
			return sendRest(ctx, subscription, out)
		}
	}
}

// sendChunk sends one piece of output; flush is left out when another one follows at once.
func sendChunk(out *connect.Sender, c *chunk, flush bool) error {
	defer c.release()
	if flush {
		return out.SendEnvelope(c.envelope)
	}
	return out.SendEnvelopeLater(c.envelope)
}

// sendRest sends the output that was taken over before the call ended.
func sendRest(ctx context.Context, subscription *Subscription, out *connect.Sender) error {
	for errors.Is(ctx.Err(), context.DeadlineExceeded) {
		select {
		case c, more := <-subscription.chunks:
			if !more {
				return ctx.Err()
			}
			if err := sendChunk(out, c, false); err != nil {
				return err
			}
		default:
			return ctx.Err()
		}
	}
	return ctx.Err()
}

func (s *Service) list(_ context.Context, _ *http.Request, _ *connect.Empty) (*listResponse, error) {
	res := &listResponse{}
	for _, p := range s.Manager.List() {
		res.Processes = append(res.Processes, infoMessage{Config: configMessage(p.Info), PID: p.PID, Tag: p.Tag})
	}
	return res, nil
}

func (s *Service) update(_ context.Context, _ *http.Request, req *updateRequest) (*connect.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	if req.PTY == nil {
		return &connect.Empty{}, nil
	}
	return &connect.Empty{}, p.Resize(req.PTY.size())
}

func (s *Service) sendInput(ctx context.Context, _ *http.Request, req *sendInputRequest) (*connect.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	return &connect.Empty{}, p.input(ctx, req.Input)
}

func (s *Service) streamInput(ctx context.Context, _ *http.Request, in *connect.Receiver[streamInputRequest]) (*connect.Empty, error) {
	var p *Process
	for {
		req, err := in.Next()
		if errors.Is(err, io.EOF) {
			return &connect.Empty{}, nil
		}
		if err != nil {
			return nil, err
		}
		switch {
		case req.Start != nil:
			if p != nil {
				return nil, connect.Errorf(connect.CodeInvalidArgument, "the stream names its process twice")
			}
			if p, err = s.find(req.Start.Process, false); err != nil {
				return nil, err
			}
		case req.Data != nil:
			if p == nil {
				return nil, connect.Errorf(connect.CodeInvalidArgument, "the stream must name its process first")
			}
			if err := p.input(ctx, req.Data.Input); err != nil {
				return nil, err
			}
		}
	}
}

// input writes what a client sends to the place it names.
func (p *Process) input(ctx context.Context, input *inputMessage) error {
	switch {
	case input == nil || (input.Stdin == nil && input.PTY == nil):
		return connect.Errorf(connect.CodeInvalidArgument, "the request holds no input")
	case input.PTY != nil && p.ends.pty == nil:
		return connect.Errorf(connect.CodeInternal, "process %d has no terminal", p.PID)
	case input.PTY != nil:
		return p.Write(ctx, p.ends.pty, *input.PTY)
	case p.ends.pty != nil:
		return connect.Errorf(connect.CodeInternal, "process %d has a terminal: input must be sent to it", p.PID)
	case p.ends.stdin == nil:
		return connect.Errorf(connect.CodeFailedPrecondition, "process %d was started without stdin", p.PID)
	default:
		return p.Write(ctx, p.ends.stdin, *input.Stdin)
	}
}

func (s *Service) sendSignal(ctx context.Context, _ *http.Request, req *sendSignalRequest) (*connect.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	switch syscall.Signal(req.Signal) {
	case syscall.SIGKILL:
		p.killAndWait(ctx, killAnswer)
	case syscall.SIGTERM:
		p.SignalTree(syscall.SIGTERM)
	default:
		return nil, connect.Errorf(connect.CodeInvalidArgument, "no signal was named")
	}
	return &connect.Empty{}, nil
}

// killAndWait kills the tree; it returns when the command was reaped, or after the given time.
func (p *Process) killAndWait(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		p.KillTree()
	}()
	for _, wait := range []<-chan struct{}{killed, p.exited} {
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) closeStdin(_ context.Context, _ *http.Request, req *closeStdinRequest) (*connect.Empty, error) {
	p, err := s.find(req.Process, false)
	if err != nil {
		return nil, err
	}
	return &connect.Empty{}, p.CloseStdin()
}

// find returns the process a request selects; with ended also one that ended a short time ago.
func (s *Service) find(selector *selectorMessage, ended bool) (*Process, error) {
	switch {
	case selector != nil && selector.PID != nil:
		pid := int(*selector.PID)
		if p := s.Manager.Find(func(p *Process) bool { return p.PID == pid }, ended); p != nil {
			return p, nil
		}
		return nil, notRunning(pid)
	case selector != nil && selector.Tag != nil:
		tag := *selector.Tag
		if p := s.Manager.Find(func(p *Process) bool { return p.Tag != nil && *p.Tag == tag }, ended); p != nil {
			return p, nil
		}
		return nil, connect.Errorf(connect.CodeNotFound, "process with tag %q not found", tag)
	default:
		return nil, connect.Errorf(connect.CodeInvalidArgument, "the request selects no process")
	}
}
