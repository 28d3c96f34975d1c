import { spawn } from 'node:child_process'

/** How a command is run; `timeoutMs` is required so that none can hang a loop. */
export type CommandOptions = {
  readonly timeoutMs: number
  readonly input?: string | Buffer
  readonly signal?: AbortSignal
  readonly env?: NodeJS.ProcessEnv
  readonly cwd?: string
  readonly uid?: number
  readonly gid?: number
  /** The file of a network namespace to run it in. */
  readonly netns?: string
}

/** A command that ended: `code` is null when a signal ended it. */
export type CommandResult = { readonly code: number | null; readonly stdout: string; readonly stderr: string }

/** A command that could not be run or ended badly; the message carries the last words it said. */
export class CommandError extends Error {
  readonly result: CommandResult | null
  constructor(file: string, args: readonly string[], result: CommandResult | null, cause?: unknown) {
    const said = result === null ? '' : lastWords(result)
    super(
      `${[file, ...args].join(' ').slice(0, 300)}: ${result === null ? 'could not be run' : `exit ${String(result.code)}`}${said}`,
      { cause },
    )
    this.result = result
  }
}

/** The most of each output stream that is kept, in bytes; what comes after is dropped. */
const OUTPUT_LIMIT_BYTES = 4 * 1024 * 1024

/** Runs a command to its end. Rejects with `CommandError` unless it exits with 0. No shell is involved. */
export async function runCommand(
  file: string,
  args: readonly string[],
  options: CommandOptions,
): Promise<CommandResult> {
  return await localCommands.run(file, args, options)
}

/** Like `runCommand`, but a bad exit is a result; rejects only when the command can't be run or takes too long. */
export function tryCommand(file: string, args: readonly string[], options: CommandOptions): Promise<CommandResult> {
  return new Promise((resolve, reject) => {
    const [program = '', ...words] = [
      ...(options.netns === undefined ? [] : ['nsenter', `--net=${options.netns}`]),
      file,
      ...args,
    ]
    const child = spawn(program, words, {
      stdio: ['pipe', 'pipe', 'pipe'],
      timeout: options.timeoutMs,
      killSignal: 'SIGKILL',
      ...(options.signal === undefined ? {} : { signal: options.signal }),
      ...(options.env === undefined ? {} : { env: options.env }),
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      ...(options.uid === undefined ? {} : { uid: options.uid }),
      ...(options.gid === undefined ? {} : { gid: options.gid }),
    })
    const stdout = collect(child.stdout)
    const stderr = collect(child.stderr)
    child.once('error', (error) => {
      reject(new CommandError(file, args, null, error))
    })
    child.once('close', (code) => {
      resolve({ code, stdout: stdout(), stderr: stderr() })
    })
    child.stdin.once('error', () => {
      child.stdin.destroy() // it ended without reading its input: its exit code tells the story
    })
    child.stdin.end(options.input)
  })
}

/** Runs commands; by which process is its maker's business. */
export type CommandRunner = {
  /** As `runCommand` does. */
  readonly run: typeof runCommand
  /** As `tryCommand` does. */
  readonly attempt: typeof tryCommand
}

/** Commands of a process that starts them in its own way. */
export function makeCommandRunner(attempt: typeof tryCommand): CommandRunner {
  return {
    attempt,
    async run(file, args, options) {
      const result = await attempt(file, args, options)
      if (result.code !== 0) throw new CommandError(file, args, result)
      return result
    },
  }
}

/** Commands that this process starts itself. */
export const localCommands: CommandRunner = makeCommandRunner(tryCommand)

function collect(stream: NodeJS.ReadableStream): () => string {
  const chunks: Buffer[] = []
  let size = 0
  stream.on('data', (chunk: Buffer) => {
    if (size < OUTPUT_LIMIT_BYTES) chunks.push(chunk)
    size += chunk.length
  })
  return () => Buffer.concat(chunks).toString('utf8')
}

function lastWords(result: CommandResult): string {
  const said = (result.stderr.trim() === '' ? result.stdout : result.stderr).trim()
  return said === '' ? '' : `: ${said.slice(-500)}`
}
