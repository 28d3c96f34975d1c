// Bundles the program of a clone into `.setup/program/HASH`, so that it starts sooner and needs less memory than its sources do
// (docs/decisions/0084-built-program.md). The hash is that of what it was built from: a changed source never meets an old program.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { say, SetUpFailure } from './say.mjs'
import { hashOfSources } from './workshop.mjs'

const sources = ['src', 'setup/bundle.mjs', 'tsconfig.json']
/** How many earlier programs stay: a server that runs from one loads some of its files late. */
const earlierPrograms = 2

/** The program as a part that `ensureBuilt` builds, and the path of its first file. */
export function programOf(root) {
  const folder = join(root, '.setup', 'program')
  const target = join(folder, hashOfSources(root, sources).slice(0, 16))
  const file = join(target, 'cli.js')
  return {
    file,
    without: 'the program runs from its sources: it needs more memory, and starts later',
    isBuilt: () => existsSync(file),
    build({ node, workshop }) {
      say('building the program')
      mkdirSync(folder, { recursive: true })
      const made = `${target}.new`
      const { status, error } = spawnSync(node, [join(workshop.folder(), 'setup', 'bundle.mjs'), root, made], {
        cwd: root,
        stdio: ['ignore', process.stderr.fd, process.stderr.fd],
      })
      if (status !== 0) throw new SetUpFailure(`the program was not built: ${error?.message ?? `exit code ${status}`}`)
      renameSync(made, target)
      removeEarlier(folder)
    },
  }
}

function removeEarlier(folder) {
  const made = readdirSync(folder).map((name) => ({
    path: join(folder, name),
    at: statSync(join(folder, name)).mtimeMs,
  }))
  made.sort((one, other) => other.at - one.at)
  for (const { path } of made.slice(1 + earlierPrograms)) rmSync(path, { recursive: true, force: true })
}
