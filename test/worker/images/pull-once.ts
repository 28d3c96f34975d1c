import { openStore, wanted } from './setup.ts'

/** A process of its own that pulls one image: `pull-once.ts STORE-FOLDER REFERENCE`. */
const [dir = '', reference = ''] = process.argv.slice(2)
const store = await openStore(dir)
await store.resolve(reference, wanted())
