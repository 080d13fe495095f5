package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Code is a Connect error code as it travels in JSON.
type Code string

// The codes envd uses.
const (
	CodeCanceled           Code = "canceled"
	CodeUnknown            Code = "unknown"
	CodeInvalidArgument    Code = "invalid_argument"
	CodeDeadlineExceeded   Code = "deadline_exceeded"
	CodeNotFound           Code = "not_found"
	CodeAlreadyExists      Code = "already_exists"
	CodePermissionDenied   Code = "permission_denied"
	CodeResourceExhausted  Code = "resource_exhausted"
	CodeFailedPrecondition Code = "failed_precondition"
	CodeUnimplemented      Code = "unimplemented"
	CodeInternal           Code = "internal"
	CodeUnavailable        Code = "unavailable"
	CodeUnauthenticated    Code = "unauthenticated"
)

var httpStatus = map[Code]int{
	CodeCanceled:           499,
	CodeUnknown:            http.StatusInternalServerError,
	CodeInvalidArgument:    http.StatusBadRequest,
	CodeDeadlineExceeded:   http.StatusGatewayTimeout,
	CodeNotFound:           http.StatusNotFound,
	CodeAlreadyExists:      http.StatusConflict,
	CodePermissionDenied:   http.StatusForbidden,
	CodeResourceExhausted:  http.StatusTooManyRequests,
	CodeFailedPrecondition: http.StatusBadRequest,
	CodeUnimplemented:      http.StatusNotImplemented,
	CodeInternal:           http.StatusInternalServerError,
	CodeUnavailable:        http.StatusServiceUnavailable,
	CodeUnauthenticated:    http.StatusUnauthorized,
}

// HTTPStatus is the status of a unary answer that carries this code.
func (c Code) HTTPStatus() int {
	if status, ok := httpStatus[c]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// Error is what a handler returns to fail a call with a code of its choice.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Errorf makes an Error; format and args are fmt's.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError turns any error into one with a code: its own if it wraps an Error, the context's if that is
// what ended the call, else internal.
func AsError(err error) *Error {
	var coded *Error
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf(CodeDeadlineExceeded, "the deadline of the call has passed")
	case errors.Is(err, context.Canceled):
		return Errorf(CodeCanceled, "the call was cancelled")
	default:
		return Errorf(CodeInternal, "%v", err)
	}
}
