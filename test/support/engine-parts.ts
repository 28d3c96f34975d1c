import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

/** A process of the engine, such as `kubelet` or `apiserver`, as setup/engines/machine.mjs has started it. */
export type EnginePart = {
  /** Stops the process where it is, as a machine does whose processor is busy. */
  freeze(): void
  thaw(): void
  kill(): void
  /** Starts it again after `kill`. It serves some time later. */
  start(): void
}

/** Finds a part of the engine in the machine's folder. */
export function enginePart(machine: string, name: string): EnginePart {
  const pidOf = (path: string): number => Number(readFileSync(join(machine, path), 'utf8'))
  const signal = (word: NodeJS.Signals): void => {
    process.kill(pidOf(`parts/${name}.pid`), word)
  }
  return {
    freeze: () => {
      signal('SIGSTOP')
    },
    thaw: () => {
      signal('SIGCONT')
      // nsenter, which started the part, stops itself when the part is stopped, and would wait for ever.
      process.kill(parentOf(pidOf(`parts/${name}.pid`)), 'SIGCONT')
    },
    kill: () => {
      signal('SIGKILL')
    },
    start: () => {
      const enter = [`--target=${String(pidOf('init.pid'))}`, '--mount', '--net', '--pid', '--']
      spawn('nsenter', [...enter, join(machine, 'parts', `${name}.sh`)], { stdio: 'ignore', detached: true }).unref()
    },
  }
}

/** The process id of the parent of a process. */
function parentOf(pid: number): number {
  const status = readFileSync(`/proc/${String(pid)}/status`, 'utf8')
  return Number(/^PPid:\s+(\d+)$/m.exec(status)?.[1])
}
