import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { ROOT } from './documents.ts'

const BUILD_LIMIT_MS = 120_000

/** Builds the dashboard unless it is up to date, as the start of a clone does. */
export async function buildDashboard(): Promise<void> {
  const build = `import('${join(ROOT, 'setup/dashboard.mjs')}').then((it) => it.ensureDashboard('${ROOT}'))`
  await runCommand(process.execPath, ['-e', build], { timeoutMs: BUILD_LIMIT_MS })
}
