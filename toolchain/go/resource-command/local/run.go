// Copyright the authors of this project. Licensed under the LICENSE file of
// its repository.

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gobwas/glob"
	"github.com/pulumi/pulumi-go-provider/infer/types"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
)

// Variables that carry the output of the run before.
const (
	previousStdout = "PULUMI_COMMAND_STDOUT"
	previousStderr = "PULUMI_COMMAND_STDERR"
)

// run runs one command, then collects the files that the globs name.
func (b *BaseArgs) run(ctx context.Context, command string, previous *BaseOutputs) (BaseOutputs, error) {
	argv := b.Interpreter
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c"}
	}
	argv = append(append([]string{}, argv...), command)

	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = os.Environ()
	if previous != nil && (b.AddPreviousOutputInEnv == nil || *b.AddPreviousOutputInEnv) {
		if previous.Stdout != "" {
			cmd.Env = append(cmd.Env, previousStdout+"="+previous.Stdout)
		}
		if previous.Stderr != "" {
			cmd.Env = append(cmd.Env, previousStderr+"="+previous.Stderr)
		}
	}
	for name, value := range b.Environment {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if b.Stdin != nil && *b.Stdin != "" {
		cmd.Stdin = strings.NewReader(*b.Stdin)
	}
	dir := ""
	if b.Dir != nil {
		dir = *b.Dir
		cmd.Dir = dir
	}

	captured := newCapture(ctx, b.Logging)
	cmd.Stdout = &captured.stdout
	cmd.Stderr = &captured.stderr
	err := cmd.Run()
	stdout, stderr, both := captured.finish()
	if err != nil {
		return BaseOutputs{}, fmt.Errorf("%w: running %q:\n%s", err, command, both)
	}
	outputs := BaseOutputs{Stdout: stdout, Stderr: stderr}

	if len(b.AssetPaths) > 0 {
		files, err := find(dir, b.AssetPaths)
		if err != nil {
			return BaseOutputs{}, err
		}
		outputs.Assets = map[string]types.AssetOrArchive{}
		for name, path := range files {
			asset, err := resource.NewPathAsset(path)
			if err != nil {
				return BaseOutputs{}, err
			}
			outputs.Assets[name] = types.AssetOrArchive{Asset: asset}
		}
	}
	if len(b.ArchivePaths) > 0 {
		files, err := find(dir, b.ArchivePaths)
		if err != nil {
			return BaseOutputs{}, err
		}
		members := map[string]any{}
		for name, path := range files {
			asset, err := resource.NewPathAsset(path)
			if err != nil {
				return BaseOutputs{}, err
			}
			members[name] = asset
		}
		if outputs.Archive, err = resource.NewAssetArchive(members); err != nil {
			return BaseOutputs{}, err
		}
	}
	return outputs, nil
}

// find returns the files under dir that the last matching of the rules
// includes, by their slash-separated path relative to dir.
func find(dir string, rules []string) (map[string]string, error) {
	type rule struct {
		glob    glob.Glob
		exclude bool
	}
	compiled := make([]rule, len(rules))
	for i, text := range rules {
		pattern, exclude := strings.CutPrefix(text, "!")
		g, err := glob.Compile(pattern, '/')
		if err != nil {
			return nil, fmt.Errorf("invalid glob %q: %w", text, err)
		}
		compiled[i] = rule{g, exclude}
	}
	root := dir
	if root == "" {
		root = "."
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && path != root {
				return nil
			}
			return err
		}
		if entry.IsDir() {
			return nil
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(relative)
		include := false
		for _, r := range compiled {
			if r.glob.Match(name) {
				include = !r.exclude
			}
		}
		if include {
			found[name] = path
		}
		return nil
	})
	return found, err
}
