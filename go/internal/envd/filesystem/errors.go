package filesystem

import (
	"errors"
	"io/fs"
	"syscall"

	"forkyard.dev/forkyard/internal/envd/connect"
)

// codes says which protocol code an operating system error has; the first that matches counts.
var codes = []struct {
	cause error
	code  connect.Code
}{
	{fs.ErrNotExist, connect.CodeNotFound},
	{syscall.ENOTDIR, connect.CodeInvalidArgument},
	{syscall.ELOOP, connect.CodeInvalidArgument},
	{syscall.ENAMETOOLONG, connect.CodeInvalidArgument},
	{syscall.EINVAL, connect.CodeInvalidArgument},
	{syscall.EISDIR, connect.CodeInvalidArgument},
	{fs.ErrPermission, connect.CodePermissionDenied},
	{syscall.EROFS, connect.CodePermissionDenied},
	{syscall.ENOSPC, connect.CodeResourceExhausted},
	{syscall.EDQUOT, connect.CodeResourceExhausted},
	{syscall.EXDEV, connect.CodeFailedPrecondition},
	{syscall.EBUSY, connect.CodeFailedPrecondition},
	{syscall.ETXTBSY, connect.CodeFailedPrecondition},
	{fs.ErrExist, connect.CodeAlreadyExists},
}

// coded gives an error of the operating system its code; one that has a code keeps it.
func coded(err error) error {
	if err == nil {
		return nil
	}
	var already *connect.Error
	if errors.As(err, &already) {
		return already
	}
	for _, known := range codes {
		if errors.Is(err, known.cause) {
			return connect.Errorf(known.code, "%v", err)
		}
	}
	return connect.Errorf(connect.CodeInternal, "%v", err)
}
