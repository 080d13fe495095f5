// Package files serves the plain HTTP routes for the content of files: /files and /files/compose.
package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/paths"
	"forkyard.dev/forkyard/internal/envd/settings"
	"forkyard.dev/forkyard/internal/envd/users"
	"forkyard.dev/forkyard/internal/envd/watch"
)

// Handler serves the routes.
type Handler struct {
	Settings *settings.Store
	Watchers *watch.Registry
	// SpoolDir is a directory for root only; bodies wait there where the filesystem knows no unnamed files.
	SpoolDir string

	locks pathLocks
}

// Register adds the routes.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", h.serve(h.download))
	mux.HandleFunc("POST /files", h.serve(h.upload))
	mux.HandleFunc("POST /files/compose", h.serve(h.compose))
}

// Error is an answer that is not a success.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string { return e.Message }

func fail(status int, format string, args ...any) *Error {
	return &Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// WriteError answers with {"code","message"}, as every plain route does.
func WriteError(w http.ResponseWriter, status int, message string) {
	body, _ := json.Marshal(map[string]any{"code": status, "message": message})
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Del("Content-Encoding")
	header.Del("Content-Disposition")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func (h *Handler) serve(handle func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			answer := asError(err)
			if answer.Status == http.StatusInternalServerError {
				slog.Warn("a file request failed", "method", r.Method, "status", answer.Status, "cause", err.Error())
			}
			WriteError(w, answer.Status, answer.Message)
		}
	}
}

var statuses = []struct {
	cause  error
	status int
}{
	{fs.ErrNotExist, http.StatusNotFound},
	{fs.ErrPermission, http.StatusForbidden},
	{syscall.EROFS, http.StatusForbidden},
	{syscall.ENOSPC, http.StatusInsufficientStorage},
	{syscall.EDQUOT, http.StatusInsufficientStorage},
	{syscall.EFBIG, http.StatusInsufficientStorage},
	{syscall.ENOTDIR, http.StatusBadRequest},
	{syscall.EISDIR, http.StatusBadRequest},
	{syscall.ELOOP, http.StatusBadRequest},
	{syscall.ENAMETOOLONG, http.StatusBadRequest},
	{syscall.EINVAL, http.StatusBadRequest},
	{syscall.ETXTBSY, http.StatusBadRequest},
}

func asError(err error) *Error {
	var answer *Error
	if errors.As(err, &answer) {
		return answer
	}
	var coded *connect.Error
	if errors.As(err, &coded) {
		return fail(coded.Code.HTTPStatus(), "%s", coded.Message)
	}
	for _, known := range statuses {
		if errors.Is(err, known.cause) {
			if known.status == http.StatusInsufficientStorage {
				return fail(known.status, "not enough disk space available")
			}
			return fail(known.status, "%v", err)
		}
	}
	return fail(http.StatusInternalServerError, "%v", err)
}

// request is what every route on /files begins with.
type request struct {
	query   url.Values
	user    users.User
	workdir string
}

func (h *Handler) begin(r *http.Request, operation access.Operation) (request, error) {
	current := h.Settings.Get()
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return request{}, fail(http.StatusBadRequest, "the query cannot be read: %v", err)
	}
	if err := access.FileAccess(r, query, operation, current, time.Now()); err != nil {
		return request{}, fail(http.StatusUnauthorized, "%v", err)
	}
	user, err := lookup(query.Get("username"), current)
	return request{query: query, user: user, workdir: current.DefaultWorkdir}, err
}

func lookup(name string, current *settings.Settings) (users.User, error) {
	user, err := access.UserNamed(name, current)
	if err != nil {
		if name == "" {
			name = current.DefaultUser
		}
		return users.User{}, fail(http.StatusUnauthorized, "error looking up user '%s': user: unknown user %s", name, name)
	}
	return user, nil
}

func (q request) resolve(path string) (string, error) {
	return paths.Resolve(path, q.user, q.workdir)
}
