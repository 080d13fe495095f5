// Package fault has the errors that the keeper answers with.
package fault

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Codes, as specs/keeper.md names them.
const (
	NotFound      = "not_found"
	AlreadyExists = "already_exists"
	Invalid       = "invalid"
	Conflict      = "conflict"
	NoSpace       = "no_space"
	Timeout       = "timeout"
	Internal      = "internal"
)

// Error is an answer that says what went wrong, in one sentence.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// New makes an Error.
func New(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: Clean(fmt.Sprintf(format, args...))}
}

// From makes an Error of any error.
func From(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return New(Internal, "%v", err)
}

// maxMessage bounds a message, in bytes: a part of it may come from a sandbox.
const maxMessage = 2000

// Clean makes text that may come from a sandbox fit to be put in an answer or a log: one line, no control
// characters, bounded.
func Clean(text string) string {
	text = strings.ToValidUTF8(text, "?")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return strings.TrimSpace(text)
}
