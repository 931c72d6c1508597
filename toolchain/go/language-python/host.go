// Copyright the authors of this project. Licensed under the LICENSE file of
// its repository.

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	"github.com/pulumi/pulumi/sdk/v3/go/common/version"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"github.com/pulumi/pulumi/sdk/v3/python/toolchain"
	"google.golang.org/protobuf/types/known/emptypb"
)

// exitShown is the exit status of an executor that has already told the user
// what is wrong.
const exitShown = 32

//go:embed packages.py
var listPackages string

type languageHost struct {
	pulumirpc.UnimplementedLanguageRuntimeServer
	executor, engine, tracing string
}

// options turns the runtime options of Pulumi.yaml into those of a toolchain.
func options(info *pulumirpc.ProgramInfo) (toolchain.PythonOptions, error) {
	result := toolchain.PythonOptions{
		Root:       info.GetRootDirectory(),
		ProgramDir: info.GetProgramDirectory(),
	}
	for name, value := range info.GetOptions().AsMap() {
		text, isText := value.(string)
		if !isText {
			return result, fmt.Errorf("the runtime option %q must be a string", name)
		}
		switch name + "=" + text {
		case "toolchain=pip":
			result.Toolchain = toolchain.Pip
		case "toolchain=poetry":
			result.Toolchain = toolchain.Poetry
		case "toolchain=uv":
			result.Toolchain = toolchain.Uv
		case "typechecker=mypy":
			result.Typechecker = toolchain.TypeCheckerMypy
		case "typechecker=pyright":
			result.Typechecker = toolchain.TypeCheckerPyright
		default:
			switch name {
			case "virtualenv":
				result.Virtualenv = text
			case "toolchain", "typechecker":
				return result, fmt.Errorf("unknown value %q of the runtime option %q", text, name)
			}
		}
	}
	return result, nil
}

// resolve returns the toolchain of a program. If ready is set, the virtual
// environment has to be there.
func resolve(ctx context.Context, info *pulumirpc.ProgramInfo, ready bool) (toolchain.Toolchain, toolchain.PythonOptions, error) {
	opts, err := options(info)
	if err != nil {
		return nil, opts, err
	}
	tools, err := toolchain.ResolveToolchain(opts)
	if err == nil && ready {
		err = tools.ValidateVenv(ctx)
	}
	return tools, opts, err
}

func environment(cmd *exec.Cmd, extra ...string) []string {
	env := cmd.Env
	if env == nil {
		env = os.Environ()
	}
	return append(env, extra...)
}

// Handshake implements LanguageRuntime.
func (h *languageHost) Handshake(_ context.Context, req *pulumirpc.LanguageHandshakeRequest) (*pulumirpc.LanguageHandshakeResponse, error) {
	if h.engine == "" {
		h.engine = req.GetEngineAddress()
	}
	return &pulumirpc.LanguageHandshakeResponse{}, nil
}

// GetPluginInfo implements LanguageRuntime.
func (h *languageHost) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{Version: version.Version}, nil
}

// Run implements LanguageRuntime: it runs the program and waits for it.
func (h *languageHost) Run(ctx context.Context, req *pulumirpc.RunRequest) (*pulumirpc.RunResponse, error) {
	info := req.GetInfo()
	tools, opts, err := resolve(ctx, info, true)
	if err != nil {
		return nil, err
	}
	if opts.Typechecker != toolchain.TypeCheckerNone {
		checker := strings.ToLower(toolchain.TypeCheckerName(opts.Typechecker))
		cmd, err := tools.ModuleCommand(ctx, checker, info.GetProgramDirectory())
		if err != nil {
			return nil, err
		}
		cmd.Dir = info.GetProgramDirectory()
		if output, err := cmd.CombinedOutput(); err != nil {
			return &pulumirpc.RunResponse{Error: fmt.Sprintf("%s: %v\n%s", checker, err, output)}, nil
		}
	}

	variables, err := configuration(req)
	if err != nil {
		return nil, err
	}
	args := []string{h.executor}
	for _, arg := range [][2]string{
		{"--monitor", req.GetMonitorAddress()},
		{"--engine", h.engine},
		{"--project", req.GetProject()},
		{"--root_directory", info.GetRootDirectory()},
		{"--stack", req.GetStack()},
		{"--pwd", req.GetPwd()},
		{"--dry_run", strconv.FormatBool(req.GetDryRun())},
		{"--parallel", strconv.Itoa(int(req.GetParallel()))},
		{"--tracing", h.tracing},
		{"--organization", req.GetOrganization()},
	} {
		if arg[1] != "" {
			args = append(args, arg[0], arg[1])
		}
	}
	program := info.GetEntryPoint()
	if program == "" {
		program = "."
	}
	args = append(append(args, program), req.GetArgs()...)

	cmd, err := tools.Command(ctx, args...)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = environment(cmd, variables...)
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return &pulumirpc.RunResponse{}, nil
	case !errors.As(err, &exit):
		return &pulumirpc.RunResponse{Error: fmt.Sprintf("could not run the language executor: %v", err)}, nil
	case exit.ExitCode() == exitShown:
		return &pulumirpc.RunResponse{Bail: true}, nil
	case exit.ExitCode() < 0:
		return &pulumirpc.RunResponse{Error: fmt.Sprintf("program exited unexpectedly: %v", exit)}, nil
	}
	return &pulumirpc.RunResponse{Error: fmt.Sprintf("program exited with non-zero exit code: %d", exit.ExitCode())}, nil
}

// configuration returns the variables that carry the stack's configuration.
func configuration(req *pulumirpc.RunRequest) ([]string, error) {
	var variables []string
	if config := req.GetConfig(); len(config) > 0 {
		text, err := json.Marshal(config)
		if err != nil {
			return nil, err
		}
		variables = append(variables, "PULUMI_CONFIG="+string(text))
	}
	if keys := req.GetConfigSecretKeys(); len(keys) > 0 {
		text, err := json.Marshal(keys)
		if err != nil {
			return nil, err
		}
		variables = append(variables, "PULUMI_CONFIG_SECRET_KEYS="+string(text))
	}
	return variables, nil
}

// GetRequiredPackages implements LanguageRuntime: it names the plugins that the
// installed Python packages need.
func (h *languageHost) GetRequiredPackages(ctx context.Context, req *pulumirpc.GetRequiredPackagesRequest) (*pulumirpc.GetRequiredPackagesResponse, error) {
	tools, _, err := resolve(ctx, req.GetInfo(), true)
	if err != nil {
		return nil, err
	}
	cmd, err := tools.Command(ctx, "-c", listPackages)
	if err != nil {
		return nil, err
	}
	cmd.Dir = req.GetInfo().GetProgramDirectory()
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("listing the installed packages: %w", err)
	}
	var packages []pythonPackage
	if err := json.Unmarshal(output, &packages); err != nil {
		return nil, fmt.Errorf("listing the installed packages: %w", err)
	}
	response := &pulumirpc.GetRequiredPackagesResponse{}
	for _, p := range packages {
		if dependency := p.dependency(); dependency != nil {
			response.Packages = append(response.Packages, dependency)
		}
	}
	return response, nil
}

// pythonPackage is one line of what packages.py prints.
type pythonPackage struct {
	Name, Version string
	Plugin        *struct {
		Resource              bool
		Name, Version, Server string
		Parameterization      *struct {
			Name, Version string
			Value         []byte
		}
	}
}

func (p *pythonPackage) dependency() *pulumirpc.PackageDependency {
	result := &pulumirpc.PackageDependency{Kind: "resource"}
	if p.Plugin != nil {
		if !p.Plugin.Resource {
			return nil
		}
		result.Name, result.Version, result.Server = p.Plugin.Name, p.Plugin.Version, p.Plugin.Server
		if param := p.Plugin.Parameterization; param != nil {
			result.Parameterization = &pulumirpc.PackageParameterization{
				Name: param.Name, Version: param.Version, Value: param.Value,
			}
		}
	}
	if result.Name == "" {
		result.Name = strings.TrimPrefix(p.Name, "pulumi-")
	}
	if result.Version == "" {
		if strings.Count(p.Version, ".") != 2 || strings.Trim(p.Version, "0123456789.") != "" {
			return nil // Not a release, so there is no telling which plugin it wants.
		}
		result.Version = p.Version
	}
	result.Version = "v" + strings.TrimPrefix(result.Version, "v")
	return result
}

// GetProgramDependencies implements LanguageRuntime.
func (h *languageHost) GetProgramDependencies(ctx context.Context, req *pulumirpc.GetProgramDependenciesRequest) (*pulumirpc.GetProgramDependenciesResponse, error) {
	tools, _, err := resolve(ctx, req.GetInfo(), true)
	if err != nil {
		return nil, err
	}
	packages, err := tools.ListPackages(ctx, req.GetTransitiveDependencies())
	if err != nil {
		return nil, err
	}
	response := &pulumirpc.GetProgramDependenciesResponse{}
	for _, p := range packages {
		response.Dependencies = append(response.Dependencies, &pulumirpc.DependencyInfo{Name: p.Name, Version: p.Version})
	}
	return response, nil
}

// About implements LanguageRuntime.
func (h *languageHost) About(ctx context.Context, req *pulumirpc.AboutRequest) (*pulumirpc.AboutResponse, error) {
	tools, opts, err := resolve(ctx, req.GetInfo(), false)
	if err != nil {
		return nil, err
	}
	info, err := tools.About(ctx)
	if err != nil {
		return nil, err
	}
	return &pulumirpc.AboutResponse{
		Executable: info.PythonExecutable,
		Version:    info.PythonVersion.String(),
		Metadata: map[string]string{
			"toolchain":        toolchain.Name(opts.Toolchain),
			"toolchainVersion": info.ToolchainVersion.String(),
			"typechecker":      toolchain.TypeCheckerName(opts.Typechecker),
		},
	}, nil
}

// InstallDependencies implements LanguageRuntime.
func (h *languageHost) InstallDependencies(req *pulumirpc.InstallDependenciesRequest, server pulumirpc.LanguageRuntime_InstallDependenciesServer) error {
	ctx := server.Context()
	tools, _, err := resolve(ctx, req.GetInfo(), false)
	if err != nil {
		return err
	}
	closer, stdout, stderr, err := rpcutil.MakeInstallDependenciesStreams(server, req.GetIsTerminal())
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "Installing dependencies...")
	directory := req.GetInfo().GetProgramDirectory()
	err = tools.InstallDependencies(ctx, directory, req.GetUseLanguageVersionTools(), true, stdout, stderr)
	if err == nil {
		fmt.Fprintln(stdout, "Finished installing dependencies")
	}
	return errors.Join(err, closer.Close())
}
