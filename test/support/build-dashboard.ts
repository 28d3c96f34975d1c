import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'
import { ROOT } from './documents.ts'

const BUILD_LIMIT_MS = 120_000

/** Builds the dashboard unless it is up to date, as the start of a clone does. */
export async function buildDashboard(): Promise<void> {
  const build = `
    import { dashboardOf } from '${join(ROOT, 'setup/dashboard.mjs')}'
    import { ensureBuilt } from '${join(ROOT, 'setup/ensure-built.mjs')}'
    ensureBuilt('${ROOT}', [dashboardOf('${ROOT}')])`
  await runCommand(process.execPath, ['--input-type=module', '-e', build], { timeoutMs: BUILD_LIMIT_MS })
}
