import { accessSync, realpathSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'
import { SetUpFailure } from './say.mjs'

/** The folder with the packages that Debian's npm requires. Only Debian's Node searches this folder by default. */
const debianModules = '/usr/share/nodejs'

/**
 * Finds this machine's npm as a script that any Node can run: `{ path, env }`. It prefers the npm that started this
 * process, then the first npm on the PATH, then the npm in the folder of this Node. Throws SetUpFailure when there is
 * none.
 */
export function npmCommand() {
  const onPath = (process.env.PATH ?? '').split(delimiter).map((folder) => join(folder, 'npm'))
  const besideNode = join(dirname(process.execPath), '..', 'lib', 'node_modules', 'npm', 'bin', 'npm-cli.js')
  for (const candidate of [process.env.npm_execpath, ...onPath, besideNode]) {
    const path = candidate === undefined ? undefined : realPathIfAny(candidate)
    if (path === undefined) continue
    // Some installations have a small wrapper script on the PATH instead of a link, with npm-cli.js in the same folder.
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
