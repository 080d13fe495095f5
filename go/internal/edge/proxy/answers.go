package proxy

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"

	"forkyard.dev/forkyard/internal/edge/controlplane"
	"forkyard.dev/forkyard/internal/edge/metrics"
	"forkyard.dev/forkyard/internal/edge/routing"
)

// Texts that clients compare with; see the E2B protocol notes.
const (
	textNotFound     = "The sandbox was not found"
	textPortClosed   = "The sandbox is running but port is not open"
	textUnauthorized = "unauthorized access, please provide a valid access token or method signing if supported"
	textExpired      = "signature is already expired"
)

// codeAway is the error_code of the answer for a control plane that does not run.
const codeAway = "server_stopped"

// maxEchoedID bounds how much of a malformed sandbox id is sent back.
const maxEchoedID = 64

// sandboxAnswer is the body of the answers about a sandbox.
type sandboxAnswer struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// plainAnswer is the error body of everything else.
type plainAnswer struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"` // stable, for clients that must tell one 503 from another
}

func (x *exchange) answer(code int, outcome metrics.Outcome, message string) {
	x.outcome = outcome
	x.writeJSON(code, plainAnswer{Code: code, Message: message})
}

// answerSandbox says something about a sandbox; port is left out when 0.
func (x *exchange) answerSandbox(code int, outcome metrics.Outcome, id string, port int, message string) {
	x.outcome = outcome
	if len(id) > maxEchoedID {
		id = strings.ToValidUTF8(id[:maxEchoedID], "")
	}
	if code == http.StatusBadGateway && wantsPage(x.request) {
		x.writePage(id, port, message)
		return
	}
	x.writeJSON(code, sandboxAnswer{SandboxID: id, Message: message, Port: port, Code: code})
}

func (x *exchange) answerNotFound(id string) {
	x.answerSandbox(http.StatusBadGateway, metrics.NotFound, id, 0, textNotFound)
}

func (x *exchange) answerPortClosed(target routing.Target) {
	x.answerSandbox(http.StatusBadGateway, metrics.PortClosed, target.ID, target.Port, textPortClosed)
}

// answerLater says that trying again soon can help.
func (x *exchange) answerLater(code int, outcome metrics.Outcome, message string) {
	x.Header().Set("Retry-After", "1")
	x.answer(code, outcome, message)
}

// answerAway says that there is no control plane now; nothing was sent to it.
func (x *exchange) answerAway() {
	x.outcome = metrics.Away
	x.Header().Set("Retry-After", "1")
	x.writeJSON(http.StatusServiceUnavailable, plainAnswer{
		Code:      http.StatusServiceUnavailable,
		Message:   "The server is stopped or starts up; sandboxes run on. Start it, or try again",
		ErrorCode: codeAway,
	})
}

// passOn gives the client what the control plane said to a wake call.
func (x *exchange) passOn(from controlplane.WakeAnswer) {
	var body plainAnswer
	if err := json.Unmarshal(from.Body, &body); err != nil || body.Code == 0 || body.Message == "" {
		x.answerLater(http.StatusServiceUnavailable, metrics.Limited, "The sandbox cannot be woken now")
		return
	}
	for _, name := range []string{"Retry-After", "Should-Retry", "Content-Type"} {
		if value := from.Header.Get(name); value != "" {
			x.Header().Set(name, value)
		}
	}
	x.outcome = metrics.Limited
	x.write(from.Status, from.Body)
}

func (x *exchange) writeJSON(code int, body any) {
	text, err := json.Marshal(body)
	if err != nil { // cannot happen: the bodies are plain structs
		text = []byte(`{"code":500,"message":"internal error"}`)
	}
	x.Header().Set("Content-Type", "application/json")
	x.write(code, text)
}

func (x *exchange) write(code int, body []byte) {
	x.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.Header().Set("Cache-Control", "no-store")
	allowAnyOrigin(x.Header())
	x.WriteHeader(code)
	_, _ = x.Write(body)
}

// wantsPage reports whether a person looks at the answer: the user agent is a browser's, and the request does not ask
// for JSON only.
func wantsPage(r *http.Request) bool {
	if !strings.HasPrefix(r.Header.Get("User-Agent"), "Mozilla/") {
		return false
	}
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "text/html") || !strings.Contains(accept, "json")
}

const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%[1]s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em;color:#222}code{background:#eee;padding:.1em .3em}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}code{background:#333}}</style></head>
<body><h1>%[1]s</h1><p>Sandbox <code>%[2]s</code>%[3]s</p></body></html>
`

func (x *exchange) writePage(id string, port int, message string) {
	where := ""
	if port != 0 {
		where = fmt.Sprintf(", port <code>%d</code>", port)
	}
	x.Header().Set("Content-Type", "text/html; charset=utf-8")
	x.write(http.StatusBadGateway, fmt.Appendf(nil, page, html.EscapeString(message), html.EscapeString(id), where))
}
