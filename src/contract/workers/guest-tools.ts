/**
 * The toolbox: programs of the worker in each sandbox that is a container (decision 0014). The worker runs them, and so does the
 * SSH server by an ordinary command, which fails where there is no toolbox.
 */

/** The folder of the toolbox in a sandbox. */
export const TOOLS_FOLDER = '/.msb/tools'

/** The folder with the scripts of a sandbox, which is on its PATH. */
export const SCRIPTS_FOLDER = '/.msb/scripts'

/** The scripts of the toolbox, from `worker/perl/guest`. */
export type ToolScript =
  | 'agent.pl'
  | 'canary.pl'
  | 'files.pl'
  | 'fill.pl'
  | 'fork-server.pl'
  | 'hold.pl'
  | 'listen.pl'
  | 'rules.pl'
  | 'tcp.pl'
  | 'volume.pl'
  | 'workload.pl'

/** The perl of a toolbox, its loader and its libraries. Paths are relative to the toolbox. */
export const TOOLBOX = { loader: 'loader', libraries: 'lib', perl: 'perl', modules: 'perl5' } as const

/** Runs a script with only the toolbox's modules: an image's modules may belong to another version of perl. */
const RUN = 'BEGIN { @INC = shift } my $script = shift; defined do $script or die $@ || "$script: $!\\n"'

/** Returns the command that runs a script of the toolbox. `folder` is the toolbox's path; by default the one in a sandbox. */
export function toolCommand(
  script: ToolScript,
  args: readonly string[] = [],
  folder: string = TOOLS_FOLDER,
): readonly string[] {
  const at = (name: string): string => `${folder}/${name}`
  const perl = [at(TOOLBOX.loader), '--library-path', at(TOOLBOX.libraries), at(TOOLBOX.perl)]
  return [...perl, '-e', RUN, at(TOOLBOX.modules), at(script), ...args]
}
