// `node setup/engines/is-built.mjs NAME` ends with 0 if the programs of the engine are at hand, so that `npm run test:NAME` need not
// build them.
import { existsSync, readdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { engineFolder, findArchive } from './engine-programs.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))
const [name] = process.argv.slice(2)
const kept = dirname(engineFolder(root, name))
const isKept = existsSync(kept) && readdirSync(kept).some((folder) => new RegExp(`^${name}-[\\d.]+$`).test(folder))
process.exitCode = isKept || findArchive(root, name) !== undefined ? 0 : 1
