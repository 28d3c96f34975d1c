// `node setup/engines/is-built.mjs NAME` ends with 0 if the programs of the engine are at hand, so that `npm run test:NAME` need not
// build them. Helm, which Kubernetes needs besides, is built in 3 minutes, if there is Go.
import { existsSync, readdirSync } from 'node:fs'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { engineFolder, findArchive, findGo } from './engine-programs.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))
const [name] = process.argv.slice(2)
const kept = dirname(engineFolder(root, name))
const isAtHand = (one) =>
  findArchive(root, one) !== undefined ||
  (existsSync(kept) && readdirSync(kept).some((folder) => new RegExp(`^${one}-v?[\\d.]+$`).test(folder)))
const hasTools = name !== 'kubernetes' || isAtHand('helm') || findGo() !== undefined
process.exitCode = isAtHand(name) && hasTools ? 0 : 1
