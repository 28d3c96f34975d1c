import { variablesWithoutEffect } from '../config.ts'
import { printStatus } from './print-status.ts'

/** Prints which variables of the environment are named like settings and are none. A server or worker calls it at its start. */
export function printUnknownSettings(env: NodeJS.ProcessEnv): void {
  const names = variablesWithoutEffect(env)
  if (names.length === 0) return
  printStatus(`no settings, and without effect: ${names.join(', ')}; \`sandyard --help\` lists the settings`)
}
