import { makeLog } from '../../lib/log.ts'
import { UsageError, type Command } from './command.ts'
import { deleteUnusedLayers, openImages } from '../worker/worker-storage.ts'

export const image: Command = {
  usage: 'image load PATH REFERENCE | list | remove REFERENCE | prune',
  summary: 'put an archive or OCI layout into the store under a reference; list; forget one; delete unused layers',
  async run({ config, args }) {
    const images = await openImages(config, makeLog(config.logLevel))
    const [verb, ...rest] = args
    const [path, reference] = rest
    if (verb === 'load' && path !== undefined && reference !== undefined && rest.length === 2) {
      const loaded = await images.load(path, reference, new AbortController().signal)
      process.stdout.write(`${reference} ${loaded.digest}\n`)
      return 0
    }
    if (verb === 'list' && rest.length === 0) {
      for (const name of await images.list()) process.stdout.write(`${name}\n`)
      return 0
    }
    if (verb === 'remove' && path !== undefined && rest.length === 1) {
      await images.remove(path)
      const count = await deleteUnusedLayers(config, images)
      process.stdout.write(`${path} is forgotten; ${String(count)} layers were deleted\n`)
      return 0
    }
    if (verb === 'prune' && rest.length === 0) {
      process.stdout.write(`${String(await deleteUnusedLayers(config, images))} layers were deleted\n`)
      return 0
    }
    throw new UsageError(`usage: sandyard ${image.usage}`)
  },
}
