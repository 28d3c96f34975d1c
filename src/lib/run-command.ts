import { spawn } from 'node:child_process'

/** How a command runs. `timeoutMs` is required, so that no command can block a loop forever. */
export type CommandOptions = {
  readonly timeoutMs: number
  readonly input?: string | Buffer
  readonly signal?: AbortSignal
  readonly env?: NodeJS.ProcessEnv
  readonly cwd?: string
  readonly uid?: number
  readonly gid?: number
  /** The file of the network namespace in which the command runs. */
  readonly netns?: string
}

/** The result of a command. `code` is null if a signal ended the command. */
export type CommandResult = { readonly code: number | null; readonly stdout: string; readonly stderr: string }

/** A command that could not run or that failed. The message contains the last part of its output. */
export class CommandError extends Error {
  readonly result: CommandResult | null
  constructor(file: string, args: readonly string[], result: CommandResult | null, cause?: unknown) {
    const output = result === null ? '' : outputTail(result)
    super(
      `${[file, ...args].join(' ').slice(0, 300)}: ${result === null ? 'could not be run' : `exit ${String(result.code)}`}${output}`,
      { cause },
    )
    this.result = result
  }
}

/** How many bytes of standard output, and of standard error, are kept. The rest is dropped. */
const OUTPUT_LIMIT_BYTES = 4 * 1024 * 1024

/** Runs a command to its end, without a shell. Rejects with `CommandError` unless it exits with 0. */
export async function runCommand(
  file: string,
  args: readonly string[],
  options: CommandOptions,
): Promise<CommandResult> {
  return await localCommands.run(file, args, options)
}

/** Like `runCommand`, but resolves for any exit code. Rejects only if the command can't be run. */
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
      child.stdin.destroy() // it ended without reading its input; its exit code tells why
    })
    child.stdin.end(options.input)
  })
}

/** Runs commands: in this process (`localCommands`), or in a helper process. */
export type CommandRunner = {
  /** Like `runCommand`. */
  readonly run: typeof runCommand
  /** Like `tryCommand`. */
  readonly attempt: typeof tryCommand
}

/** Makes a runner from its `attempt` function. `run` calls `attempt` and rejects unless the exit code is 0. */
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

/** Runs commands as children of this process. */
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

function outputTail(result: CommandResult): string {
  const output = (result.stderr.trim() === '' ? result.stdout : result.stderr).trim()
  return output === '' ? '' : `: ${output.slice(-500)}`
}
