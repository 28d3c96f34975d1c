import { Command } from 'commander'
import { settingRows } from '../config.ts'
import { VERSION } from './version.ts'

type CommandEntry = {
  readonly summary: string
  /** Loads the function that declares the command's arguments, flags, subcommands and handlers. */
  readonly load: () => Promise<(command: Command) => void>
}

/** The commands by name, in the order of the help page. */
const COMMANDS: Readonly<Record<string, CommandEntry>> = {
  up: {
    summary: 'run the whole cloud on this machine: database, control plane and a worker',
    load: async () => (await import('./commands/up.ts')).defineUp,
  },
  worker: {
    summary: 'run sandboxes on this machine for a control plane elsewhere, or manage the workers of a control plane',
    load: async () => (await import('./commands/worker.ts')).defineWorker,
  },
  serve: {
    summary: 'run the control plane without a worker; several processes may share one PostgreSQL',
    load: async () => (await import('./commands/serve.ts')).defineServe,
  },
  down: {
    summary: 'stop the server and all sandboxes of this machine, and keep the data',
    load: async () => (await import('./commands/down.ts')).defineDown,
  },
  uninstall: {
    summary: 'stop everything on this machine and delete the data',
    load: async () => (await import('./commands/uninstall.ts')).defineUninstall,
  },
  backup: {
    summary: 'back up the data of this machine while it runs; list and verify backups',
    load: async () => (await import('./commands/backup.ts')).defineBackup,
  },
  restore: {
    summary: 'restore a backup into a new data folder',
    load: async () => (await import('./commands/restore.ts')).defineRestore,
  },
  doctor: {
    summary: 'show what this machine can run, and what is missing',
    load: async () => (await import('./commands/doctor.ts')).defineDoctor,
  },
  image: {
    summary: 'load, list, inspect, remove and prune the images of this machine',
    load: async () => (await import('./commands/image.ts')).defineImage,
  },
  snapshot: {
    summary: 'list snapshots; export and import them as OCI image layouts',
    load: async () => (await import('./commands/snapshot.ts')).defineSnapshot,
  },
  ps: {
    summary: 'list the sandboxes of all organizations',
    load: async () => (await import('./commands/view/ps.ts')).definePs,
  },
  inspect: {
    summary: 'show everything about a sandbox',
    load: async () => (await import('./commands/view/inspect.ts')).defineInspect,
  },
  why: {
    summary: 'explain where a sandbox stands, what was tried and what would help',
    load: async () => (await import('./commands/view/why.ts')).defineWhy,
  },
  logs: {
    summary: 'print or follow the log of a sandbox',
    load: async () => (await import('./commands/view/logs.ts')).defineLogs,
  },
  top: {
    summary: 'show what sandboxes use of their processors and memory',
    load: async () => (await import('./commands/view/top.ts')).defineTop,
  },
  events: {
    summary: 'show what happened, by whom and why: the audit events of all organizations',
    load: async () => (await import('./commands/view/events.ts')).defineEvents,
  },
  org: {
    summary: 'create, list, suspend and resume organizations, and choose their plans',
    load: async () => (await import('./commands/org.ts')).defineOrg,
  },
  plan: {
    summary: 'list, show and set the plans: limits and prices',
    load: async () => (await import('./commands/plan.ts')).definePlan,
  },
  quota: {
    summary: 'show, set and clear the limits of an organization',
    load: async () => (await import('./commands/quota.ts')).defineQuota,
  },
  member: {
    summary: 'add, list and remove the members of an organization, and change their roles',
    load: async () => (await import('./commands/member.ts')).defineMember,
  },
  key: {
    summary: 'create, list and revoke API keys',
    load: async () => (await import('./commands/key.ts')).defineKey,
  },
  'ssh-key': {
    summary: 'add, list and remove the SSH keys of an organization, and show the host key',
    load: async () => (await import('./commands/ssh-key.ts')).defineSshKey,
  },
  registry: {
    summary: "save, list and delete an organization's credentials for image registries",
    load: async () => (await import('./commands/registry.ts')).defineRegistry,
  },
  webhook: {
    summary: 'create, test, pause and delete the webhooks of an organization, and show their deliveries',
    load: async () => (await import('./commands/webhook.ts')).defineWebhook,
  },
  usage: {
    summary: 'export the usage of an organization as CSV',
    load: async () => (await import('./commands/usage.ts')).defineUsage,
  },
  migrate: {
    summary: 'migrate the database to the newest schema',
    load: async () => (await import('./commands/migrate.ts')).defineMigrate,
  },
  openapi: {
    summary: 'print the OpenAPI document',
    load: async () => (await import('./commands/openapi.ts')).defineOpenapi,
  },
  completion: {
    summary: 'print a completion script for bash or zsh',
    load: async () => (await import('./commands/completion.ts')).defineCompletion,
  },
}

/**
 * Creates the program for a command line. It loads only the command that the command line names, or all commands for
 * `completion`. If all commands were loaded, one that only queries the database would start in 2.0 s instead of 0.9 s
 * (2026-11, two cores, no compile cache).
 */
export async function makeProgram(argv: readonly string[]): Promise<Command> {
  const words = argv.filter((word) => !word.startsWith('-'))
  const named = words[0] === 'help' ? words[1] : words[0]
  const program = new Command('sandyard')
    .description('Sandyard: the open, self-hosted sandbox cloud.')
    .version(VERSION, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print this help')
    .helpCommand('help [command]', 'print the help of a command')
    .addHelpText('after', `\nSettings; a flag wins over its variable:\n${describeSettings()}`)
    .showHelpAfterError('Add --help to see what this command takes.')
    .configureOutput({
      outputError: (text, write) => {
        write(text.replace(/^error: /, 'sandyard: '))
      },
    })
    .enablePositionalOptions() // keeps a subcommand from taking a flag that precedes it
    .exitOverride()
  for (const [name, { summary, load }] of Object.entries(COMMANDS)) {
    const command = program.command(name).description(summary)
    if (name === named || named === 'completion') (await load())(command)
  }
  return program
}

function describeSettings(): string {
  const lines = settingRows().map(([variable, flag, fallback, unit, meaning]) => {
    const name = flag === '' ? variable : `${variable} (${flag})`
    return `  ${name}\n      ${meaning} [${unit}${fallback === '' ? '' : `; default ${fallback}`}]`
  })
  return lines.join('\n')
}
