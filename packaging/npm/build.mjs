// `node packaging/npm/build.mjs` makes what the npm package has in addition to the repository's files: `dist/`, the
// program as JavaScript and the built dashboard, and `npm-shrinkwrap.json`, the lock file without packages for development. npm runs it as
// `prepack`, under Node 24. With `--clean` it deletes both. docs/decisions/0032-npm-package.md has the reasons.
import { cpSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { dashboardOf } from '../../setup/dashboard.mjs'
import { ensureBuilt } from '../../setup/ensure-built.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))
const source = join(root, 'src')
const target = join(root, 'dist')
const shrinkwrap = join(root, 'npm-shrinkwrap.json')

for (const made of [target, shrinkwrap]) rmSync(made, { recursive: true, force: true })
if (!process.argv.includes('--clean')) {
  buildProgram()
  ensureBuilt(root, [dashboardOf(root)], { node: process.execPath })
  writeShrinkwrap()
}

/**
 * Strips the types from every TypeScript file as Node does when it runs the file. Stripped types become spaces, so the
 * lines and columns of a stack trace are those of the source.
 */
function buildProgram() {
  for (const path of globSync('**/*.{ts,pl,pm}', { cwd: source })) {
    const to = join(target, path.replace(/\.ts$/, '.js'))
    mkdirSync(dirname(to), { recursive: true })
    if (path.endsWith('.ts')) writeFileSync(to, toJavaScript(readFileSync(join(source, path), 'utf8')))
    else cpSync(join(source, path), to)
  }
}

function toJavaScript(text) {
  const specifier = /(\b(?:from|import)\s*\(?\s*)(['"])(\.{1,2}\/[^'"\n]+)\.ts\2/g
  return stripTypeScriptTypes(text).replaceAll(specifier, '$1$2$3.js$2')
}

/** npm then installs exactly the versions and hashes that the tests ran with. It packs no `package-lock.json`. */
function writeShrinkwrap() {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  const packages = Object.entries(lock.packages).filter(([, { dev, devOptional }]) => !dev && !devOptional)
  writeFileSync(shrinkwrap, `${JSON.stringify({ ...lock, packages: Object.fromEntries(packages) }, null, 2)}\n`)
}
