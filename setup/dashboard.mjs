// Builds the dashboard of a clone into `dist/dashboard`. The npm package carries the built one, so nothing is built there.
// Invariant: `dist/dashboard/.sources` is the hash of what it was built from, so a start builds only after a change.
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { say, SetUpFailure } from './say.mjs'
import { hashOfSources } from './workshop.mjs'

/** What the dashboard is built from. From `src/contract` it takes types only. */
const sources = ['dashboard', 'src/channel', 'tsconfig.json']

/** The dashboard as a part that `ensureBuilt` builds. */
export function dashboardOf(root) {
  const target = join(root, 'dist', 'dashboard')
  const hash = hashOfSources(root, sources)
  return {
    without: 'the server starts without its dashboard',
    isBuilt: () => existsSync(join(target, '.sources')) && readFileSync(join(target, '.sources'), 'utf8') === hash,
    build({ node, workshop }) {
      say('building the dashboard')
      const folder = workshop.folder()
      const made = `${target}.new`
      const { status, error } = spawnSync(node, [join(folder, 'dashboard', 'build.mjs'), made], {
        cwd: folder,
        stdio: ['ignore', process.stderr.fd, process.stderr.fd],
      })
      if (status !== 0)
        throw new SetUpFailure(`the dashboard was not built: ${error?.message ?? `exit code ${status}`}`)
      writeFileSync(join(made, '.sources'), hash)
      rmSync(target, { recursive: true, force: true })
      renameSync(made, target)
    },
  }
}
