import java.nio.file.Path;

/** `driver VECTORS RESULTS STATE`: what the test driver makes of vectors. `live JOB STATE`: a real application. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "driver" -> Driver.run(Path.of(arguments[1]), Path.of(arguments[2]), Path.of(arguments[3]));
            case "live" -> Live.run(Path.of(arguments[1]), Path.of(arguments[2]));
            default -> throw new IllegalArgumentException("no such mode: " + arguments[0]);
        }
    }
}
