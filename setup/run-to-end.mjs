import { spawn } from 'node:child_process'

/** Signals by which a person or a supervisor ends a run. */
const endings = ['SIGINT', 'SIGTERM', 'SIGHUP']

/**
 * Runs a program with our own input and output to its end and gives its exit code, or 1 when a signal ended it.
 * SIGTERM and SIGHUP are passed on; Ctrl-C reaches the program from the terminal itself, so we only outlive it.
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
