package files

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"forkyard.dev/forkyard/internal/envd/access"
	"forkyard.dev/forkyard/internal/envd/asuser"
)

const (
	maxComposeBody    = 4 << 20
	maxComposeSources = 10000
)

type composeRequest struct {
	SourcePaths []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// compose joins files into one, and removes them when that is written.
func (h *Handler) compose(w http.ResponseWriter, r *http.Request) error {
	current := h.Settings.Get()
	if !access.HasToken(r, current) {
		return fail(http.StatusUnauthorized, "%s", access.UnauthorizedMessage)
	}
	var body composeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBody)).Decode(&body); err != nil {
		return fail(http.StatusBadRequest, "the request is not valid: %v", err)
	}
	if len(body.SourcePaths) == 0 || len(body.SourcePaths) > maxComposeSources || body.Destination == "" {
		return fail(http.StatusBadRequest, "source_paths must name 1 to %d files, and destination one", maxComposeSources)
	}
	user, err := lookup(body.Username, current)
	if err != nil {
		return err
	}
	req := request{user: user, workdir: current.DefaultWorkdir}
	destination, err := req.resolve(body.Destination)
	if err != nil {
		return err
	}
	sources := make([]string, len(body.SourcePaths))
	for i, name := range body.SourcePaths {
		if sources[i], err = req.resolve(name); err != nil {
			return err
		}
		file, _, err := openRegular(user, sources[i])
		if err != nil {
			return err
		}
		_ = file.Close()
	}
	joined := &joinedFiles{open: func(path string) (io.ReadCloser, error) {
		file, _, err := openRegular(user, path)
		return file, err
	}, left: sources}
	defer joined.close()
	if err := h.store(content{user: user, path: destination, body: joined}); err != nil {
		return err
	}
	if err := asuser.Run(user, func() error { return removeSources(sources, destination) }); err != nil {
		return err
	}
	return writeJSON(w, stored{Name: filepath.Base(destination), Path: destination, Type: "file"})
}

// removeSources removes each source once, but not one that is the destination itself.
func removeSources(sources []string, destination string) error {
	kept, err := os.Stat(destination)
	if err != nil {
		return err
	}
	for _, path := range sources {
		info, err := os.Stat(path)
		if os.IsNotExist(err) || (err == nil && os.SameFile(info, kept)) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// joinedFiles reads files one after the other, with one open at a time.
type joinedFiles struct {
	open    func(path string) (io.ReadCloser, error)
	left    []string
	current io.ReadCloser
}

func (j *joinedFiles) Read(p []byte) (int, error) {
	for {
		if j.current == nil {
			if len(j.left) == 0 {
				return 0, io.EOF
			}
			file, err := j.open(j.left[0])
			if err != nil {
				return 0, err
			}
			j.current, j.left = file, j.left[1:]
		}
		n, err := j.current.Read(p)
		if err == io.EOF {
			j.close()
			err = nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (j *joinedFiles) close() {
	if j.current != nil {
		_ = j.current.Close()
		j.current = nil
	}
}
