// Copyright the authors of this project. Licensed under the LICENSE file of
// its repository.

// Package local runs commands on the machine that runs the Pulumi engine.
package local

import (
	"context"

	"github.com/pulumi/pulumi-go-provider/infer"
	"github.com/pulumi/pulumi-go-provider/infer/types"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
)

// Command is the resource command:local:Command.
type Command struct{}

// Annotate implements infer.Annotated.
func (c *Command) Annotate(a infer.Annotator) {
	a.Describe(c, "A command that runs on the machine that runs the Pulumi engine.")
}

// BaseArgs holds the inputs that decide how a command runs.
type BaseArgs struct {
	Interpreter            []string          `pulumi:"interpreter,optional"`
	Dir                    *string           `pulumi:"dir,optional"`
	Environment            map[string]string `pulumi:"environment,optional"`
	Stdin                  *string           `pulumi:"stdin,optional"`
	Logging                *Logging          `pulumi:"logging,optional"`
	AddPreviousOutputInEnv *bool             `pulumi:"addPreviousOutputInEnv,optional"`
	AssetPaths             []string          `pulumi:"assetPaths,optional"`
	ArchivePaths           []string          `pulumi:"archivePaths,optional"`
}

// Annotate implements infer.Annotated.
func (b *BaseArgs) Annotate(a infer.Annotator) {
	a.Describe(&b.Interpreter, `The program and arguments that get the command. Defaults to ["/bin/sh", "-c"].`)
	a.Describe(&b.Dir, "The directory to run in. It has to exist.")
	a.Describe(&b.Environment, "Variables for the command, besides those of the engine.")
	a.Describe(&b.Stdin, "The standard input of the command.")
	a.Describe(&b.Logging, "Which output is shown while the command runs. Both by default.")
	a.Describe(&b.AddPreviousOutputInEnv, "Whether an update or delete command gets the output of the run before in "+
		previousStdout+" and "+previousStderr+". True by default.")
	a.Describe(&b.AssetPaths, "Globs of files to return as assets; a leading ! excludes.")
	a.Describe(&b.ArchivePaths, "Globs of files to return as one archive; a leading ! excludes.")
}

// BaseOutputs holds what a run gives back.
type BaseOutputs struct {
	Stdout  string                          `pulumi:"stdout"`
	Stderr  string                          `pulumi:"stderr"`
	Assets  map[string]types.AssetOrArchive `pulumi:"assets,optional"`
	Archive *resource.Archive               `pulumi:"archive,optional"`
}

// Annotate implements infer.Annotated.
func (b *BaseOutputs) Annotate(a infer.Annotator) {
	a.Describe(&b.Stdout, "The standard output of the command")
	a.Describe(&b.Stderr, "The standard error of the command")
	a.Describe(&b.Assets, "The files that assetPaths found, by their path relative to dir.")
	a.Describe(&b.Archive, "The files that archivePaths found.")
}

// CommandInputs holds the inputs of Command.
type CommandInputs struct {
	BaseArgs
	Triggers []any   `pulumi:"triggers,optional" provider:"replaceOnChanges"`
	Create   *string `pulumi:"create,optional"`
	Update   *string `pulumi:"update,optional"`
	Delete   *string `pulumi:"delete,optional"`
}

// Annotate implements infer.Annotated.
func (c *CommandInputs) Annotate(a infer.Annotator) {
	c.BaseArgs.Annotate(a)
	a.Describe(&c.Triggers, "Values of any type; a change of one of them replaces the resource.")
	a.Describe(&c.Create, "The command to run when the resource is created, and on an update if there is no update command.")
	a.Describe(&c.Update, "The command to run when an input has changed.")
	a.Describe(&c.Delete, "The command to run when the resource is deleted.")
}

// CommandState holds the outputs of Command.
type CommandState struct {
	CommandInputs
	BaseOutputs
}

// Annotate implements infer.Annotated.
func (c *CommandState) Annotate(a infer.Annotator) {
	c.CommandInputs.Annotate(a)
	c.BaseOutputs.Annotate(a)
}

var (
	_ infer.CustomResource[CommandInputs, CommandState] = (*Command)(nil)
	_ infer.CustomUpdate[CommandInputs, CommandState]   = (*Command)(nil)
	_ infer.CustomDelete[CommandState]                  = (*Command)(nil)
)

// Create implements infer.CustomCreate.
func (*Command) Create(ctx context.Context, req infer.CreateRequest[CommandInputs]) (infer.CreateResponse[CommandState], error) {
	id, err := resource.NewUniqueHex(req.Name, 8, 0)
	if err != nil {
		return infer.CreateResponse[CommandState]{}, err
	}
	response := infer.CreateResponse[CommandState]{ID: id, Output: CommandState{CommandInputs: req.Inputs}}
	if req.DryRun || req.Inputs.Create == nil {
		return response, nil
	}
	response.Output.BaseOutputs, err = req.Inputs.run(ctx, *req.Inputs.Create, nil)
	return response, err
}

// Update implements infer.CustomUpdate.
func (*Command) Update(ctx context.Context, req infer.UpdateRequest[CommandInputs, CommandState]) (infer.UpdateResponse[CommandState], error) {
	response := infer.UpdateResponse[CommandState]{
		Output: CommandState{CommandInputs: req.Inputs, BaseOutputs: req.State.BaseOutputs},
	}
	command := req.Inputs.Update
	if command == nil {
		command = req.Inputs.Create
	}
	if req.DryRun || command == nil {
		return response, nil
	}
	var err error
	response.Output.BaseOutputs, err = req.Inputs.run(ctx, *command, &req.State.BaseOutputs)
	return response, err
}

// Delete implements infer.CustomDelete.
func (*Command) Delete(ctx context.Context, req infer.DeleteRequest[CommandState]) (infer.DeleteResponse, error) {
	if req.State.Delete == nil {
		return infer.DeleteResponse{}, nil
	}
	_, err := req.State.run(ctx, *req.State.Delete, &req.State.BaseOutputs)
	return infer.DeleteResponse{}, err
}
