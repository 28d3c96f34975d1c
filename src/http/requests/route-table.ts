/** The methods of every route, to tell a wrong path (404) from a wrong method (405). */
export type RouteTable = {
  add(method: string, template: string): void
  /** The methods of all routes that match a path, sorted. Empty if no route matches. */
  methodsFor(path: string): readonly string[]
}

/**
 * Creates an empty table. Its templates have the router's syntax: `:name` matches one path segment, and `*` matches the
 * rest.
 */
export function makeRouteTable(): RouteTable {
  const methods = new Map<string, { readonly shape: RegExp; readonly names: Set<string> }>()
  return {
    add(method, template) {
      const known = methods.get(template) ?? { shape: compilePathTemplate(template), names: new Set<string>() }
      known.names.add(method)
      methods.set(template, known)
    },
    methodsFor(path) {
      const names = [...methods.values()].filter(({ shape }) => shape.test(path)).flatMap((route) => [...route.names])
      return [...new Set(names)].toSorted()
    },
  }
}

/**
 * Compiles a path template to a regular expression. In the template, `:name` or `{name}` stands for a path segment. The
 * named groups are the parameters.
 */
export function compilePathTemplate(template: string): RegExp {
  const steps = template.split('/').map((step) => {
    if (step === '*') return '.*'
    const name = /^:(\w+)$|^\{(\w+)\}$/.exec(step)
    return name === null ? step.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&') : `(?<${name[1] ?? name[2] ?? ''}>[^/]+)`
  })
  return new RegExp(`^${steps.join('/')}$`)
}
