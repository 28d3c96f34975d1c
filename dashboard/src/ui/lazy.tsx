import type { ComponentType } from 'preact'
import { useLoad } from '../lib/load.ts'
import { Load } from './load.tsx'

type LazyProps<Parts> = {
  readonly load: () => Promise<{ readonly default: ComponentType<Parts> }>
  readonly parts: Parts
}

/** A component whose code is loaded when it is shown. */
export function Lazy<Parts extends object>({ load, parts }: LazyProps<Parts>) {
  const loaded = useLoad(load, [load])
  return <Load of={loaded}>{({ default: Component }) => <Component {...parts} />}</Load>
}
