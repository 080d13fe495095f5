package process

import (
	"strconv"
	"syscall"

	"forkyard.dev/forkyard/internal/envd/connect"
)

// The messages of process.Process, as JSON has them.

// configMessage has the fields of Info.
type configMessage struct {
	Cmd  string            `json:"cmd,omitempty"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitempty"`
}

type sizeMessage struct {
	Cols connect.Uint32 `json:"cols"`
	Rows connect.Uint32 `json:"rows"`
}

type ptyMessage struct {
	Size *sizeMessage `json:"size"`
}

func (p *ptyMessage) size() Size {
	if p == nil || p.Size == nil {
		return Size{}
	}
	return Size{Cols: uint32(p.Size.Cols), Rows: uint32(p.Size.Rows)}
}

type startRequest struct {
	Process *configMessage `json:"process"`
	PTY     *ptyMessage    `json:"pty"`
	Tag     *string        `json:"tag"`
	Stdin   *bool          `json:"stdin"`
}

type selectorMessage struct {
	PID *connect.Uint32 `json:"pid"`
	Tag *string         `json:"tag"`
}

type connectRequest struct {
	Process *selectorMessage `json:"process"`
}

type updateRequest struct {
	Process *selectorMessage `json:"process"`
	PTY     *ptyMessage      `json:"pty"`
}

type inputMessage struct {
	Stdin *connect.Bytes `json:"stdin"`
	PTY   *connect.Bytes `json:"pty"`
}

type sendInputRequest struct {
	Process *selectorMessage `json:"process"`
	Input   *inputMessage    `json:"input"`
}

type streamInputRequest struct {
	Start *struct {
		Process *selectorMessage `json:"process"`
	} `json:"start"`
	Data *struct {
		Input *inputMessage `json:"input"`
	} `json:"data"`
	Keepalive *connect.Empty `json:"keepalive"`
}

// signalMessage is the enum Signal: its name, or its number.
type signalMessage syscall.Signal

func (s *signalMessage) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case `"SIGNAL_SIGKILL"`, "9":
		*s = signalMessage(syscall.SIGKILL)
	case `"SIGNAL_SIGTERM"`, "15":
		*s = signalMessage(syscall.SIGTERM)
	case "null", `"SIGNAL_UNSPECIFIED"`, "0":
		*s = 0
	default:
		return connect.Errorf(connect.CodeInvalidArgument, "unknown signal %s", data)
	}
	return nil
}

type sendSignalRequest struct {
	Process *selectorMessage `json:"process"`
	Signal  signalMessage    `json:"signal"`
}

type closeStdinRequest struct {
	Process *selectorMessage `json:"process"`
}

type infoMessage struct {
	Config configMessage `json:"config"`
	PID    int           `json:"pid"`
	Tag    *string       `json:"tag,omitempty"`
}

type listResponse struct {
	Processes []infoMessage `json:"processes,omitempty"`
}

type eventResponse struct {
	Event eventMessage `json:"event"`
}

type eventMessage struct {
	Start     *startEvent    `json:"start,omitempty"`
	End       *endEvent      `json:"end,omitempty"`
	Keepalive *connect.Empty `json:"keepalive,omitempty"`
}

type startEvent struct {
	PID int `json:"pid"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode,omitempty"`
	Exited   bool   `json:"exited,omitempty"`
	Status   string `json:"status"`
	Error    string `json:"error,omitempty"`
}

// newEndEvent words an exit status as the protocol does.
func newEndEvent(status syscall.WaitStatus) *endEvent {
	if !status.Exited() {
		text := "signal: " + status.Signal().String()
		if status.CoreDump() {
			text += " (core dumped)"
		}
		return &endEvent{ExitCode: -1, Status: text, Error: text}
	}
	code := status.ExitStatus()
	end := &endEvent{ExitCode: code, Exited: true, Status: "exit status " + strconv.Itoa(code)}
	if end.ExitCode != 0 {
		end.Error = end.Status
	}
	return end
}
