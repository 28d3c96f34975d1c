import { accessSync, realpathSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'
import { SetUpFailure } from './say.mjs'

/** Where Debian's own npm keeps the packages that it requires; only Debian's own Node looks there by itself. */
const debianModules = '/usr/share/nodejs'

/**
 * The npm of this machine as a script that any Node can run: `{ path, env }`. The npm that started us comes first, then
 * the first on the PATH, then the one beside this Node. Throws SetUpFailure when there is none.
 */
export function npmCommand() {
  const onPath = (process.env.PATH ?? '').split(delimiter).map((folder) => join(folder, 'npm'))
  const besideNode = join(dirname(process.execPath), '..', 'lib', 'node_modules', 'npm', 'bin', 'npm-cli.js')
  for (const candidate of [process.env.npm_execpath, ...onPath, besideNode]) {
    const path = candidate === undefined ? undefined : realPathIfAny(candidate)
    if (path === undefined) continue
    // Some installs put a small wrapper on the PATH instead of a link; its npm-cli.js lies beside it.
    for (const script of [path, join(dirname(path), 'npm-cli.js')]) {
      if (!script.endsWith('npm-cli.js') || realPathIfAny(script) === undefined) continue
      return { path: script, env: script.startsWith(`${debianModules}/`) ? { NODE_PATH: debianModules } : {} }
    }
  }
  throw new SetUpFailure(
    'npm was not found (looked in npm_execpath, the PATH and beside this Node); install npm and run this again',
  )
}

function realPathIfAny(path) {
  try {
    accessSync(path)
    return realpathSync(path)
  } catch {
    return undefined
  }
}
