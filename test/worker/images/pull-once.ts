import { openStore, wanted } from './setup.ts'

/** A script that pulls one image, which tests run and kill: `pull-once.ts STORE-FOLDER REFERENCE`. */
const [dir = '', reference = ''] = process.argv.slice(2)
const store = await openStore(dir)
await store.resolve(reference, wanted())
