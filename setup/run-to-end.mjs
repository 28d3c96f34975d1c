import { spawn } from 'node:child_process'

/** The signals with which a person or a supervisor ends a run. */
const endings = ['SIGINT', 'SIGTERM', 'SIGHUP']

/**
 * Runs a program with this process's input and output. Resolves with the program's exit code, or 1 when a signal ended
 * it. SIGTERM and SIGHUP are forwarded to the program. The terminal sends Ctrl-C to both processes, so this process
 * only waits for the program to end.
 */
export function runToEnd(program, args, { cwd, env = {} }) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, env: { ...process.env, ...env }, stdio: 'inherit' })
    const listeners = endings.map((signal) => [signal, () => signal !== 'SIGINT' && child.kill(signal)])
    for (const [signal, listener] of listeners) process.on(signal, listener)
    child.once('error', reject)
    child.once('exit', (exitCode) => {
      for (const [signal, listener] of listeners) process.off(signal, listener)
      resolve(exitCode ?? 1)
    })
  })
}
