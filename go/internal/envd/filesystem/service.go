package filesystem

import (
	"context"
	"net/http"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/asuser"
	"forkyard.dev/forkyard/internal/envd/connect"
	"forkyard.dev/forkyard/internal/envd/paths"
	"forkyard.dev/forkyard/internal/envd/settings"
	"forkyard.dev/forkyard/internal/envd/users"
	"forkyard.dev/forkyard/internal/envd/watch"
)

// Service is the RPC service filesystem.Filesystem.
type Service struct {
	Settings *settings.Store
	Watchers *watch.Registry
}

// Register adds the service's routes.
func (s *Service) Register(mux *http.ServeMux) {
	mux.Handle("/filesystem.Filesystem/Stat", connect.Unary(s.stat))
	mux.Handle("/filesystem.Filesystem/ListDir", connect.Unary(s.listDir))
	mux.Handle("/filesystem.Filesystem/MakeDir", connect.Unary(s.makeDir))
	mux.Handle("/filesystem.Filesystem/Move", connect.Unary(s.move))
	mux.Handle("/filesystem.Filesystem/Remove", connect.Unary(s.remove))
	mux.Handle("/filesystem.Filesystem/WatchDir", connect.ServerStream(s.watchDir))
	mux.Handle("/filesystem.Filesystem/CreateWatcher", connect.Unary(s.createWatcher))
	mux.Handle("/filesystem.Filesystem/GetWatcherEvents", connect.Unary(s.getWatcherEvents))
	mux.Handle("/filesystem.Filesystem/RemoveWatcher", connect.Unary(s.removeWatcher))
}

type pathRequest struct {
	Path string `json:"path"`
}

type listRequest struct {
	Path  string         `json:"path"`
	Depth connect.Uint32 `json:"depth"`
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

type entryResponse struct {
	Entry *Entry `json:"entry"`
}

// caller is who asks, and how to read the paths of the request.
type caller struct {
	user    users.User
	workdir string
}

func (s *Service) caller(r *http.Request) (caller, error) {
	current := s.Settings.Get()
	user, err := access.User(r, current)
	return caller{user: user, workdir: current.DefaultWorkdir}, err
}

func (c caller) resolve(path string) (string, error) {
	return paths.Resolve(path, c.user, c.workdir)
}

// describe makes the entry for an answer.
func (c caller) describe(path string) (*entryResponse, error) {
	res := &entryResponse{}
	err := asuser.Run(c.user, func() (err error) {
		res.Entry, err = Describe(path, users.System.Names())
		return err
	})
	if err != nil {
		return nil, coded(err)
	}
	return res, nil
}

func (s *Service) stat(_ context.Context, r *http.Request, req *pathRequest) (*entryResponse, error) {
	c, err := s.caller(r)
	if err != nil {
		return nil, err
	}
	path, err := c.resolve(req.Path)
	if err != nil {
		return nil, err
	}
	return c.describe(path)
}

func (s *Service) listDir(_ context.Context, r *http.Request, req *listRequest) (*listing, error) {
	c, err := s.caller(r)
	if err != nil {
		return nil, err
	}
	path, err := c.resolve(req.Path)
	if err != nil {
		return nil, err
	}
	l, err := newListing(path, int(req.Depth), c.user)
	if err != nil {
		return nil, coded(err)
	}
	return l, nil
}

func (s *Service) makeDir(_ context.Context, r *http.Request, req *pathRequest) (*entryResponse, error) {
	c, err := s.caller(r)
	if err != nil {
		return nil, err
	}
	path, err := c.resolve(req.Path)
	if err != nil {
		return nil, err
	}
	if err := makeDir(path, c.user); err != nil {
		return nil, coded(err)
	}
	s.Watchers.Settle()
	return c.describe(path)
}

func (s *Service) move(_ context.Context, r *http.Request, req *moveRequest) (*entryResponse, error) {
	c, err := s.caller(r)
	if err != nil {
		return nil, err
	}
	source, err := c.resolve(req.Source)
	if err != nil {
		return nil, err
	}
	destination, err := c.resolve(req.Destination)
	if err != nil {
		return nil, err
	}
	if err := move(source, destination, c.user); err != nil {
		return nil, coded(err)
	}
	s.Watchers.Settle()
	return c.describe(destination)
}

func (s *Service) remove(_ context.Context, r *http.Request, req *pathRequest) (*connect.Empty, error) {
	c, err := s.caller(r)
	if err != nil {
		return nil, err
	}
	path, err := c.resolve(req.Path)
	if err != nil {
		return nil, err
	}
	if err := asuser.Run(c.user, func() error { return remove(path) }); err != nil {
		return nil, coded(err)
	}
	return &connect.Empty{}, nil
}
